"""Several processes that train together: how they meet, agree, and read and write one state.

torchrun starts the processes and gives each its rank; without torchrun there is a team of one,
for which everything here is a plain call. Collectives are here and in `heads.sharding` only.
"""

from __future__ import annotations

import atexit
import inspect
import os
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from sphereface2.files import naming
from sphereface2.safe_pickle import load_metadata

if TYPE_CHECKING:
    from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

Value = TypeVar("Value")
Task = TypeVar("Task")

# A rank that dies is noticed at once, because its connections close. This is for one that hangs,
# and must be longer than anything that a rank does alone, such as rank 0 its evaluation.
PATIENCE = timedelta(minutes=30)
TIMEOUT_VARIABLE = "SPHEREFACE2_RANK_TIMEOUT"
"""The environment variable with another such time, in seconds."""

# Seconds for the communication's threads to let go of their last tensors, which takes them some
# microseconds once they are let; see `leave_group`.
_LETTING_GO = 0.2

_LEFT: list[Any] = []  # groups; see `leave_group`

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_LOST = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed? ?out", re.I)


class LostRankError(RuntimeError):
    """Another rank has ended or cannot be reached; `advice` is what to do about it."""

    def __init__(self, lost: str, advice: str = "") -> None:
        super().__init__(f"{lost}; {advice}" if advice else lost)
        self.lost, self.advice = lost, advice


class ReportedElsewhereError(ValueError):
    """Rank 0 reports what went wrong; this rank ends without a word."""


@contextmanager
def joined() -> Iterator[Team]:
    """The team that torchrun started this process in, until the end of the block."""
    if any(name not in os.environ for name in _TORCHRUN) or os.environ["WORLD_SIZE"] == "1":
        yield Team()
        return
    patience = _patience()
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    from torch.distributed.rendezvous import rendezvous

    try:
        store, rank, world = next(rendezvous("env://", timeout=patience))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if has_nccl else "gloo",
            store=_own_part(store, rank, world, patience),
            rank=rank,
            world_size=world,
            timeout=patience,
        )
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise LostRankError(
            f"rank {os.environ['RANK']} did not find the others at {address}: {_first_line(error)}"
        ) from None
    try:
        yield current_team()
    except RuntimeError as error:
        if isinstance(error, LostRankError) or not _is_lost_contact(error):
            raise
        raise LostRankError(
            f"rank {dist.get_rank()} lost another rank, which has ended or cannot be reached "
            f"({_first_line(error)})",
            "continue from the last checkpoint with 'sphereface2 resume RUN'",
        ) from None
    finally:
        leave_group()


def _own_part(store: Any, rank: int, world: int, patience: timedelta) -> Any:
    """A part of the store for these ranks alone.

    A torchrun that restarts gives the new ranks the store of those before, in which the addresses
    of the dead would be found. So rank 0 names a part, and gives the name to everybody who asks
    with a number that was drawn for it; what the dead have asked is of no consequence.
    """
    token = mine = uuid.uuid4().hex
    if rank:
        store.set(f"asked by {rank}", mine)
        token = store.get(f"answer to {mine}").decode()
        store.set(f"{token} has {rank}", "")
    waiting = set(range(1, world)) if rank == 0 else set()
    deadline = time.monotonic() + patience.total_seconds()
    while waiting:
        for each in sorted(waiting):
            if store.check([f"{token} has {each}"]):
                waiting.remove(each)
            elif store.check([f"asked by {each}"]):
                store.set(f"answer to {store.get(f'asked by {each}').decode()}", token)
        if time.monotonic() > deadline:
            raise RuntimeError(f"rank {min(waiting)} did not come")
        time.sleep(0.02)
    # torch's own part of these types is not to be seen by a type checker.
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore(token, store)


def is_restarted() -> bool:
    """Whether torchrun starts the same command again when a rank is lost or the ranks change."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def _patience() -> timedelta:
    given = os.environ.get(TIMEOUT_VARIABLE)
    if given is None:
        return PATIENCE
    if not given.isdecimal() or not int(given):
        raise ValueError(f"{TIMEOUT_VARIABLE} must be a whole number of seconds, got '{given}'")
    return timedelta(seconds=int(given))


def leave_group() -> None:
    """Destroy the process group, such that this process can end at any time.

    A thread of gloo that has done a collective still holds its tensors and needs Python's lock to
    let go of them, for which it may have to wait. If Python shuts down in that moment it ends the
    thread in the middle of C++, which aborts the whole process: "terminate called without an
    active exception", and torchrun takes a rank that has done all its work for a lost one.
    And the last owner of the group waits for its threads and keeps the lock meanwhile, so
    that both wait forever: that was a data parallel module in the frames of a `LostRankError`.
    So the group is kept until Python shuts down, and the lock left to the threads before; then
    they idle.
    """
    _LEFT.append(dist.group.WORLD)
    dist.destroy_process_group()
    # At the end and not here: a rank that has lost another must say so before torchrun ends it.
    atexit.unregister(_let_threads_finish)  # once is enough for any number of groups
    atexit.register(_let_threads_finish)


def _let_threads_finish() -> None:
    time.sleep(_LETTING_GO)


def current_team() -> Team:
    """The team of the process group that is up, or this process alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return Team()
    local = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
    return Team(rank=dist.get_rank(), world=dist.get_world_size(), local_rank=local)


@dataclass(frozen=True)
class Team:
    """The processes of a run; every method is to be called by all of them, in the same order."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """The rank among those on this machine."""

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints, evaluates and writes."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.world == 1

    # -- agreeing --------------------------------------------------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error inside, on any rank, is raised on all at the end; collectives are not allowed.

        So no rank waits for one that has given up. A user's mistake is raised in words on rank 0
        and as a ReportedElsewhereError on the others.
        """
        if self.is_alone:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        is_mistake = isinstance(error, ValueError | OSError)
        found = self.gather(None if error is None else (str(error), is_mistake))
        wrong = [(rank, *entry) for rank, entry in enumerate(found) if entry is not None]
        if not wrong:
            return
        if error is not None and (self.is_first or not is_mistake):
            raise error
        rank, sentence, is_mistake = wrong[0]
        if not self.is_first:
            raise ReportedElsewhereError(sentence) from None
        raise (ValueError if is_mistake else RuntimeError)(f"on rank {rank}: {sentence}")

    def require_same(self, values: Mapping[str, Any]) -> None:
        """Refuse ranks that were started with different settings, by the first of them."""
        everyone: list[Mapping[str, Any]] = self.gather(dict(values))
        with self.together():
            for rank, theirs in enumerate(everyone):
                for key in sorted({*everyone[0], *theirs}):
                    first, other = everyone[0].get(key), theirs.get(key)
                    if first != other:
                        raise ValueError(
                            f"the ranks disagree: {key} is {first} on rank 0 and {other} on rank "
                            f"{rank}; start all ranks with the same command, data and version"
                        )

    def from_first(self, make: Callable[[], Value]) -> Value:
        """What `make` gives on rank 0, known to all; the others wait."""
        if self.is_alone:
            return make()
        made: list[Any] = [None]
        with self.together():
            if self.is_first:
                made = [make()]
        dist.broadcast_object_list(made, src=0)
        value: Value = made[0]
        return value

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all ranks."""
        if not self.is_alone:
            dist.all_reduce(values)
        return values

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, by rank, known to all."""
        if self.is_alone:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def divided(
        self,
        tasks: Sequence[Task],
        compute: Callable[[Task], Tensor],
        *,
        outline: Callable[[Task], Tensor],
        cost: Callable[[Task], float],
    ) -> Iterator[Tensor]:
        """`compute` of every task, done by one rank and given to all; the bits are the same.

        outline: an empty tensor of the shape and type of a task's result
        cost: by which the tasks are divided; all ranks must see the same ones
        """
        if self.is_alone:
            yield from map(compute, tasks)
            return
        load = [0.0] * self.world
        owners = [0] * len(tasks)
        for number in sorted(range(len(tasks)), key=lambda number: -cost(tasks[number])):
            owners[number] = load.index(min(load))
            load[owners[number]] += cost(tasks[number])
        results = [
            (compute if owner == self.rank else outline)(task).contiguous()
            for task, owner in zip(tasks, owners, strict=True)
        ]
        # As bytes, all of a rank in one piece whatever their types are.
        pieces = [result.view(-1).view(torch.uint8) for result in results]
        sent = []
        for rank in range(self.world):
            own = [piece for piece, owner in zip(pieces, owners, strict=True) if owner == rank]
            if own:
                message = torch.cat(own)
                sent.append((rank, own, message, dist.broadcast(message, rank, async_op=True)))
        for rank, own, message, work in sent:
            assert work is not None
            work.wait()
            if rank != self.rank:
                for piece, values in zip(
                    own, torch.split(message, [each.numel() for each in own]), strict=True
                ):
                    piece.copy_(values)
        yield from results

    # -- training --------------------------------------------------------------------------------

    def device_name(self, name: str) -> str:
        """The name of this rank's own device, where the config names a kind."""
        if self.is_alone:
            return name
        if name.startswith("cuda:") or name == "mps":
            raise ValueError(
                f"device={name} is one device, but there are {self.world} ranks; "
                "use device=cuda or device=cpu"
            )
        if name == "cuda" or (name == "auto" and torch.cuda.is_available()):
            return f"cuda:{self.local_rank}"
        return "cpu"

    def data_parallel(self, backbone: nn.Module, device: torch.device) -> nn.Module:
        """The network with its gradients averaged over the ranks.

        Batch norm stays each rank's own: it normalises over the rank's share of the batch, and
        the running statistics that are evaluated and saved are those of rank 0.
        """
        if self.is_alone:
            return backbone
        if device.type == "cuda":
            torch.cuda.set_device(device)
        wrapper = nn.parallel.DistributedDataParallel
        # The option has changed its name: what it means here is the same.
        is_new = "forward_sync_buffers" in inspect.signature(wrapper).parameters
        buffers: dict[str, Any] = {"forward_sync_buffers" if is_new else "broadcast_buffers": False}
        return wrapper(
            backbone,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **buffers,
        )

    def grad_scaler(self, device: torch.device, *, enabled: bool) -> GradScaler:
        """A loss scaler that passes over a step on all ranks if a gradient overflows on one."""
        if self.is_alone or not enabled:
            return GradScaler(device.type, enabled=enabled)
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(device.type)

    # -- files -----------------------------------------------------------------------------------

    def save_tensors(
        self, folder: Path, tensors: Mapping[str, Tensor], *, rows: Mapping[str, int]
    ) -> None:
        """Write tensors into a folder, each rank its part.

        Those named in `rows` are cut over the ranks along their first dimension and have so many
        rows in all; of all others rank 0's are written.
        """
        from torch.distributed.checkpoint.state_dict_saver import save

        state = {
            name: self._whole(tensor.detach(), rows.get(name))
            for name, tensor in tensors.items()
            if self.is_first or name in rows
        }
        failed = f"the checkpoint {folder} cannot be written"
        # Torch's writer only stops, and does not say why.
        with _file_errors(failed, OSError(f"{failed} (is the disk full?)")):
            save(state, storage_writer=_writer(folder), no_dist=self.is_alone)

    def load_tensors(
        self,
        folder: Path,
        tensors: Mapping[str, Tensor],
        *,
        rows: Mapping[str, int],
    ) -> None:
        """Fill the tensors in place with what any number of ranks has saved."""
        from torch.distributed.checkpoint.state_dict_loader import load

        state = {
            name: self._whole(tensor.detach(), rows.get(name)) for name, tensor in tensors.items()
        }
        with self.together():
            reader = _reader(folder)
        damaged = ValueError(f"{folder} is damaged; restore it or start the training again")
        with _file_errors(f"the checkpoint {folder} cannot be read", damaged):
            load(state, storage_reader=reader, no_dist=self.is_alone)

    def _whole(self, tensor: Tensor, rows: int | None) -> Tensor:
        """A rank's rows as part of a tensor over all ranks, which checkpoints can cut again."""
        if self.is_alone or rows is None:
            return tensor
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        assert dist.group.WORLD is not None
        mesh = DeviceMesh.from_group(dist.group.WORLD, tensor.device.type)
        return DTensor.from_local(
            tensor,
            mesh,
            [Shard(0)],
            run_check=False,
            shape=torch.Size((rows, *tensor.shape[1:])),
            stride=tensor.stride(),
        )


ALONE = Team()


def saved_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the tensors in a folder, without reading them."""
    entries: dict[str, Any] = _reader(folder).read_metadata().state_dict_metadata
    return {name: tuple(entry.size) for name, entry in entries.items()}


def _writer(folder: Path) -> FileSystemWriter:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.metadata import StorageMeta

    class Writer(FileSystemWriter):
        def storage_meta(self) -> StorageMeta:
            return StorageMeta()  # else the folder's absolute path would be written down

    return Writer(folder, single_file_per_rank=True, sync_files=True)


def _reader(folder: Path) -> FileSystemReader:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

    # The original unpickles whatever the file holds. Read here, once: if that fails later, on
    # one rank, torch prints a traceback and lets that rank continue without the others.
    with naming(folder / ".metadata"):
        metadata: Metadata = load_metadata(folder / ".metadata")

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            metadata.storage_meta = StorageMeta(load_id=self.load_id)
            return metadata

    return Reader(folder)


@contextmanager
def _file_errors(failed: str, otherwise: Exception) -> Iterator[None]:
    """What goes wrong on any rank while it reads or writes, as one sentence on all ranks.

    failed: the sentence, where the system says why
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            # That one process saves alone needs no warning.
            warnings.filterwarnings("ignore", message="torch.distributed is", category=UserWarning)
            yield
    except CheckpointException as error:  # a BaseException, for reasons of its own
        # What the system says (no space left) helps; what torch says of a broken file does not.
        causes = [cause for cause, _ in error.failures.values() if isinstance(cause, OSError)]
        known = OSError(f"{failed} ({_first_line(causes[0])})") if causes else otherwise
        raise (known if current_team().is_first else ReportedElsewhereError(str(known))) from None


def _is_lost_contact(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or bool(_LOST.search(str(error)))


def _first_line(error: BaseException) -> str:
    """The gist of a message of torch: its first sentence, without a place in the source."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[\S+:\d+\] ", "", line).split(". ")[0][:200]
