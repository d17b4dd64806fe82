"""MegaFace on disk: feature files, the devkit's JSON lists, and the lists of noisy images."""

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import Missing
from sphereface2.files import WorkFolder
from sphereface2.models.unit_rows import Float32, first_of
from sphereface2.progress import Progress

HEADER = struct.Struct("<4i")  # rows, columns, bytes a value, OpenCV's type (5 is float32)
NOISY_MARK = 100.0  # what InsightFace's clean-up script writes into an extra last column

_TOLD = 1_000  # files between two calls of progress
_STORED = 50_000  # files between two notes of how far a gathering got


@dataclass(frozen=True, eq=False)
class MegaFaceSet:
    """The images of the protocol in the order of its lists, and which of them are mislabelled."""

    probe_names: Sequence[str]
    people: npt.NDArray[np.str_]
    distractor_names: Sequence[str]
    noisy_probes: npt.NDArray[np.bool_]
    noisy_distractors: npt.NDArray[np.bool_]


def read_megaface(
    lists: Path,
    *,
    size: int = 1_000_000,
    number: int = 1,
    probe_noises: Path | None = None,
    distractor_noises: Path | None = None,
) -> MegaFaceSet:
    """The devkit's `templatelists` folder; the noise lists only if given (a refined protocol)."""
    folder = lists / "templatelists" if (lists / "templatelists").is_dir() else lists
    probe_path = folder / "facescrub_features_list.json"
    distractor_path = folder / f"megaface_features_list.json_{size}_{number}"
    names, people = _list(probe_path), _list(probe_path, key="id")
    if len(people) != len(names):
        raise ValueError(f"{probe_path} has {len(names):,} paths but {len(people):,} ids")
    distractors = _list(distractor_path)
    return MegaFaceSet(
        probe_names=names,
        people=np.array(people),
        distractor_names=distractors,
        noisy_probes=noisy(names, read_noises(probe_noises)),
        noisy_distractors=noisy(distractors, read_noises(distractor_noises)),
    )


def read_noises(path: Path | None) -> frozenset[str]:
    """The names in a noise list, one per line (behind its tab, if any); `#` starts a comment."""
    if path is None:
        return frozenset()
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; it should list the noisy images")
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    columns = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return frozenset(parts[1] if len(parts) > 1 else parts[0] for parts in columns)


def noisy(names: Sequence[str], noises: frozenset[str]) -> npt.NDArray[np.bool_]:
    """Which names a noise list holds: by the whole path or, as for FaceScrub, by the file name."""
    return np.array(
        [name in noises or name.rsplit("/", 1)[-1] in noises for name in names], dtype=np.bool_
    )


def read_feature(path: Path) -> Float32:
    """One feature file: four int32 (dimensions, 1, 4, 5), then float32."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; extract its features first") from None
    if len(content) < HEADER.size:
        raise ValueError(f"{path} is not a MegaFace feature file: it has {len(content)} bytes")
    rows, columns, width, kind = HEADER.unpack_from(content)
    if (columns, width, kind) != (1, 4, 5) or rows < 1:
        raise ValueError(
            f"{path} is not a MegaFace feature file: its header is {(rows, columns, width, kind)}, "
            "not (dimensions, 1, 4, 5)"
        )
    if len(content) != HEADER.size + 4 * rows:
        raise ValueError(
            f"{path} should have {HEADER.size + 4 * rows:,} bytes for {rows} dimensions but has "
            f"{len(content):,}; it may be cut off"
        )
    return np.frombuffer(content, dtype="<f4", offset=HEADER.size).astype(np.float32)


def write_feature(path: Path, feature: npt.NDArray[np.float32]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = HEADER.pack(feature.size, 1, 4, 5)
    path.write_bytes(head + np.ascontiguousarray(feature, dtype="<f4").tobytes())


def find_ending(folder: Path, names: Sequence[str]) -> str:
    """What follows the image name in the feature files: `x.jpg_insightface.bin` has
    `_insightface.bin`."""
    first = folder / names[0]
    found = sorted(path.name for path in _files_of(first))
    if len(found) != 1:
        known = f"several: {first_of(found)}" if found else "none"
        raise ValueError(
            f"{first.parent} should hold one feature file {first.name}*.bin but has {known}; give "
            "the ending"
        )
    return found[0][len(first.name) :]


def _files_of(image: Path) -> Iterator[Path]:
    return image.parent.glob(f"{image.name}*.bin")


def gather_features(
    folder: Path,
    names: Sequence[str],
    output: Path,
    *,
    ending: str | None = None,
    missing: Missing = "error",
    progress: Progress | None = None,
) -> Path:
    """Copy a feature file a name into one memory-mapped .npy table, in the order of `names`.

    With `missing` "skip", names without a file that can be read get NaN.

    Interrupted, it resumes when it is called again with the same names; the table gets its name
    only when it is whole.
    """
    if missing == "skip":
        # The ending and the dimensions are those of the first that is there.
        there = (n for n, name in enumerate(names) if any(_files_of(folder / name)))
        names_from = names[next(there, 0) :]
    else:
        names_from = names
    suffix = find_ending(folder, names_from) if ending is None else ending
    first = read_feature(folder / (names_from[0] + suffix))
    shape = (len(names), first.size)
    task = hashlib.sha256("\n".join([str(shape), suffix, *names]).encode()).hexdigest()
    work = WorkFolder(output)
    with work.locked():
        part = work.path / "table.npy"
        known = work.noted() or {}
        done = int(known["done"]) if known.get("task") == task and part.is_file() else 0
        work.note({"task": task, "done": done})
        table = np.lib.format.open_memmap(
            part, mode="r+" if done else "w+", dtype=np.float32, shape=None if done else shape
        )
        for number in range(done, len(names)):
            try:
                feature = read_feature(folder / (names[number] + suffix))
            except (ValueError, OSError) as error:
                if missing == "error":
                    raise type(error)(f"{error}; --missing skip leaves such images out") from None
                feature = np.full(first.size, np.nan, np.float32)
            if feature.size != first.size:
                _refuse_widths(folder, names, suffix, first.size, start=number)
            table[number] = feature
            if (number + 1) % _TOLD == 0 and progress is not None:
                progress(number + 1, len(names))
            if (number + 1) % _STORED == 0:
                table.flush()
                work.note({"task": task, "done": number + 1})
        table.flush()
        del table
        work.deliver([(part, output)])
    if progress is not None:
        progress(len(names), len(names))
    return output


def feature_table(
    root: Path,
    kind: str,
    names: Sequence[str],
    *,
    store: Path,
    missing: Missing = "error",
    progress: Progress | None = None,
) -> Path:
    """KIND.npy in `root`, or its folder KIND of feature files gathered once into one in `store`."""
    path = next(
        (each for each in (root / f"{kind}.npy", store / f"{kind}.npy") if each.is_file()), None
    )
    if path is not None:
        return path
    if not (root / kind).is_dir():
        raise FileNotFoundError(
            f"{root} has neither {kind}.npy nor a folder {kind} of feature files"
        )
    return gather_features(
        root / kind, names, store / f"{kind}.npy", missing=missing, progress=progress
    )


def strip_noise_column(
    table: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Without the extra column of InsightFace's clean-up script, and the rows it marks as noisy.

    That script appends 0 to every feature and 100 to a noisy distractor's. Other tables come back
    as they are.
    """
    last = np.asarray(table[:, -1])
    marked = last == NOISY_MARK
    if table.shape[1] > 1 and bool(np.all(marked | (last == 0) | np.isnan(last))):
        return table[:, :-1], marked
    return table, np.zeros(len(table), dtype=np.bool_)


def write_list(path: Path, names: Sequence[str], *, people: Iterable[str] | None = None) -> None:
    """A list as the devkit has it."""
    content = {"path": list(names)}
    if people is not None:
        content["id"] = list(people)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def _list(path: Path, *, key: str = "path") -> list[str]:
    if not path.is_file():
        near = sorted(each.name for each in path.parent.glob("*features_list*"))
        raise FileNotFoundError(
            f"{path} does not exist; the folder's lists are: {first_of(near) if near else 'none'}"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error.msg} in line {error.lineno}") from None
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, list) or not found:
        raise ValueError(f"{path} has no list '{key}'")
    return [str(each) for each in found]


def _refuse_widths(
    folder: Path, names: Sequence[str], suffix: str, width: int, *, start: int
) -> None:
    wrong = [
        name
        for name in names[start : start + _STORED]
        if read_feature(folder / (name + suffix)).size != width
    ]
    raise ValueError(
        f"{folder}: the first feature has {width} dimensions but at least {len(wrong):,} others "
        f"have not ({first_of(wrong)}); they come from another model"
    )
