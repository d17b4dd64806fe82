"""Saved embeddings: .npy, .npz, .pt and MegaFace files, ours and other projects', with checks."""

import hashlib
import struct
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import Missing, without_ending
from sphereface2.data.sources.image_file import is_image_file
from sphereface2.files import WorkFolder, on_full_disk, take_room
from sphereface2.models.embedder import Float32, Mirror, Vectors, check_rows, check_table
from sphereface2.safe_pickle import read_arrays
from sphereface2.workers import Progress, first_of, unseen

SUFFIXES = (".npy", ".npz", ".pt", ".pth", ".bin")
# The names under which others keep embeddings in an .npz; the mirror images' beside them.
_KEYS = ("embeddings", "embs", "img_feats", "feats", "features")
_MIRROR_KEYS = ("mirrored", "embs_f", "img_feats_f", "feats_f", "features_f")
_NAME_KEYS = ("names", "img_names", "image_names")
_PEOPLE_KEYS = ("people", "labels", "label")

HEADER = struct.Struct("<4i")  # rows, columns, bytes per value, OpenCV's type (5 is float32)
NOISY_MARK = 100.0  # what InsightFace's clean-up script writes into an extra last column
_REPORTED = 1_000  # files between two calls of progress
_STORED = 50_000  # files between two notes of how far a gathering got


@dataclass(frozen=True, eq=False)
class SavedEmbeddings:
    """A table of embeddings and what its file says about it.

    vectors: (n, D), memory-mapped where the format allows; (n, 2D) as [image | mirror image] if
    `mirror` is "sum"
    names, people: (n,) if known
    """

    vectors: Vectors
    mirror: Mirror
    names: Sequence[str] | None
    people: npt.NDArray[Any] | None
    source: str


def read_embeddings(
    path: Path,
    *,
    dim: int | None = None,
    mirrored: bool | None = None,
    check_values: bool = False,
) -> SavedEmbeddings:
    """Embeddings from a file that we, InsightFace or OpenSphere would write.

    .npy: (n, D); (n, 2, D) as OpenSphere holds them, image and mirror image
    .npz: `embeddings`, or InsightFace's `embs` with the mirror images' `embs_f`
    .pt, .pth: a tensor of either shape; .bin: one MegaFace feature
    A .txt beside it has `name` or `name person` per line.

    dim: what is expected, to be refused otherwise
    mirrored: True if a row is [image | mirror image], as InsightFace's IJB scripts have it (1024
    numbers for 512 dimensions); None takes that for given where `dim` is half the width
    check_values: also look for NaN and zero rows, which costs a pass over the file
    """
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, where one file of embeddings is expected "
            f"({', '.join(SUFFIXES)}); a folder is for a --protocol with several lists, such as "
            "identification (gallery.npy and probe.npy): docs/protocols.md says which"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; it should hold embeddings")
    table, listed, people = _table(path)
    mirror: Mirror = "given"
    if table.ndim == 3:
        if table.shape[1] != 2:
            raise ValueError(
                f"{path} has the shape {table.shape}; three axes mean images × 2 (image, mirror "
                "image) × dimensions"
            )
        table = table.reshape(len(table), -1)
        mirror = "sum"
    check_table(table, source=str(path))
    width = table.shape[1]
    if mirrored or (mirrored is None and dim is not None and width == 2 * dim):
        mirror = "sum"
    found = width // 2 if mirror == "sum" else width
    if dim is not None and found != dim:
        raise ValueError(f"{path} has embeddings of {found} dimensions; {dim} are expected")
    if check_values:
        check_rows(table, source=str(path))
    beside = path.with_suffix(".txt")
    if listed is None and beside.is_file():
        listed, people = _read_names(beside, rows=len(table))
    for what, given in (("names", listed), ("labels", people)):
        if given is not None and len(given) != len(table):
            raise ValueError(f"{path} has {len(table):,} embeddings but {len(given):,} {what}")
    return SavedEmbeddings(table, mirror, listed, people, str(path))


def in_order(
    saved: SavedEmbeddings, names: Sequence[str], *, missing: Missing = "error"
) -> npt.NDArray[np.intp]:
    """The row of each of `names`; for a protocol whose images were embedded in another order.

    With `missing` "skip" it is -1 for a name that has none.
    """
    if saved.names is None:
        raise ValueError(f"{saved.source} has no names; put one per line into a .txt beside it")
    rows: dict[str, int] = {}
    twice: list[str] = []
    for number, name in enumerate(saved.names):
        if name in rows:
            twice.append(name)
        rows[name] = number
    if twice:
        raise ValueError(f"{saved.source}: {len(twice):,} names occur twice ({first_of(twice)})")
    lacking = [name for name in names if name not in rows]
    if lacking and missing == "error":
        have = "has" if len(lacking) == 1 else "have"
        raise ValueError(
            f"{saved.source}: {len(lacking):,} of {len(names):,} images of the list {have} no "
            f"embedding ({first_of(lacking)}); --missing skip leaves them out"
        )
    return np.array([rows.get(name, -1) for name in names], dtype=np.intp)


def named_alike(saved: SavedEmbeddings, names: Sequence[str]) -> SavedEmbeddings:
    """With names like those of a list: LFW's lists name images without their ending."""
    if saved.names is None or any(is_image_file(name) for name in names):
        return saved
    return replace(saved, names=[without_ending(name) for name in saved.names])


def rows_of(
    saved: SavedEmbeddings, names: Sequence[str], *, missing: Missing = "error"
) -> tuple[Vectors, Mirror]:
    """The vectors in the order of `names`; embeddings without names must be in it already.

    With `missing` "skip", names without an embedding get NaN.
    """
    if saved.names is None:
        if len(saved.vectors) != len(names):
            raise ValueError(
                f"{saved.source} has {len(saved.vectors):,} embeddings for the {len(names):,} "
                "images of the list and no names; put one name per line into a .txt beside it"
            )
        return saved.vectors, saved.mirror
    saved = named_alike(saved, names)
    if list(saved.names or ()) == list(names):
        return saved.vectors, saved.mirror
    rows = in_order(saved, names, missing=missing)
    vectors = saved.vectors[rows]
    if (rows < 0).any():
        vectors[rows < 0] = np.nan
    return vectors, saved.mirror


_Read = tuple[npt.NDArray[Any], Sequence[str] | None, npt.NDArray[Any] | None]


def _table(path: Path) -> _Read:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _numpy(path), None, None
    if suffix == ".npz":
        return _zipped(path)
    if suffix in (".pt", ".pth"):
        return _tensor(path), None, None
    if suffix == ".bin":
        return read_feature(path)[None], None, None
    if suffix in (".pkl", ".pickle"):
        raise ValueError(
            f"{path} is a pickle, which can run code when read; save the array with numpy.save"
        )
    raise ValueError(f"{path} has the ending '{suffix}' (known: {', '.join(SUFFIXES)})")


def _numpy(path: Path) -> npt.NDArray[Any]:
    with path.open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            raise ValueError(f"{path} is not an .npy file; save a plain array with numpy.save")
    try:
        table: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a broken header raises errors of many kinds
        raise ValueError(f"{path} cannot be read as .npy ({error}); save a plain array") from None
    return table


def _zipped(path: Path) -> _Read:
    try:
        archive = read_arrays(path)
        key = _first_key(_KEYS, archive) or (next(iter(archive)) if len(archive) == 1 else None)
        if key is None:
            raise ValueError(
                f"has no array of embeddings among {', '.join(archive)} (known: {', '.join(_KEYS)})"
            )
        table = archive[key]
        mirror_key = _first_key(_MIRROR_KEYS, archive)
        # An empty one is what the script writes when it ran without the mirror images.
        if mirror_key is not None and archive[mirror_key].size:
            mirrored = archive[mirror_key]
            if mirrored.shape != table.shape:
                raise ValueError(
                    f"has {key} of the shape {table.shape} but {mirror_key} of {mirrored.shape}"
                )
            table = np.stack([table, mirrored], axis=1)
        names, people = (
            _listed(archive[each]) if (each := _first_key(known, archive)) else None
            for known in (_NAME_KEYS, _PEOPLE_KEYS)
        )
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return table, None if names is None else [str(name) for name in names], people


def _listed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.ndim != 1:
        raise ValueError(f"has names or people of the shape {values.shape}, not one for each row")
    return values


def _tensor(path: Path) -> npt.NDArray[Any]:
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch raises whatever the file makes it raise, with advice to run it
        raise ValueError(
            f"{path} cannot be read as a tensor: it is damaged, or holds more than plain tensors, "
            "which could run code; save the embeddings alone, with numpy.save or torch.save"
        ) from None
    if not isinstance(loaded, torch.Tensor):
        raise ValueError(f"{path} holds a {type(loaded).__name__}, not a tensor of embeddings")
    table: npt.NDArray[Any] = loaded.detach().float().numpy()
    return table


def _first_key(known: Sequence[str], held: Container[str]) -> str | None:
    return next((key for key in known if key in held), None)


def _read_names(path: Path, *, rows: int) -> tuple[list[str], npt.NDArray[Any] | None]:
    # Names keep their bytes, as Python's paths do; a tab separates names that hold blanks.
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    said = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    lines = [line.split("\t") if "\t" in line else line.split() for line in said]
    if len(lines) != rows:
        raise ValueError(f"{path} has {len(lines):,} names for {rows:,} embeddings")
    people = np.array([parts[1] for parts in lines]) if all(len(p) > 1 for p in lines) else None
    return [parts[0] for parts in lines], people


# -- MegaFace: a feature file per image ------------------------------------------------------------


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


def find_ending(image: Path) -> str:
    """What follows the image name in the feature files: `x.jpg_insightface.bin` has
    `_insightface.bin`."""
    found = sorted(path.name for path in _files_of(image))
    if len(found) != 1:
        known = f"several: {first_of(found)}" if found else "none"
        raise ValueError(
            f"{image.parent} should hold one feature file {image.name}*.bin but has {known}; give "
            "the ending"
        )
    return found[0].removeprefix(image.name)


def _files_of(image: Path) -> Iterator[Path]:
    return image.parent.glob(f"{image.name}*.bin")


def gather_features(
    folder: Path,
    names: Sequence[str],
    output: Path,
    *,
    missing: Missing = "error",
    progress: Progress = unseen,
) -> Path:
    """Copy a feature file per name into one memory-mapped .npy table, in the order of `names`.

    With `missing` "skip", names without a file that can be read get NaN.

    Interrupted, it resumes when it is called again with the same names; the table gets its name
    only when it is whole.
    """
    example = names[0]
    if missing == "skip":
        # The ending and the dimensions are those of the first that is there.
        example = next((name for name in names if any(_files_of(folder / name))), example)
    suffix = find_ending(folder / example)
    first = read_feature(folder / (example + suffix))
    shape = (len(names), first.size)
    listing = "\n".join([str(shape), suffix, *names]).encode("utf-8", "surrogateescape")
    task = hashlib.sha256(listing).hexdigest()
    work = WorkFolder(output)
    with work.locked():
        part = work.path / "table.npy"
        known = work.noted() or {}
        done = int(known["done"]) if known.get("task") == task and part.is_file() else 0
        work.note({"task": task, "done": done})
        if not done:
            with on_full_disk(output, kept="nothing is gathered yet"):
                np.lib.format.open_memmap(part, "w+", np.float32, shape).flush()
                take_room(part)
        table = np.lib.format.open_memmap(part, mode="r+")
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
            if (number + 1) % _REPORTED == 0:
                progress(number + 1, len(names))
            if (number + 1) % _STORED == 0:
                table.flush()
                work.note({"task": task, "done": number + 1})
        table.flush()
        del table
        work.deliver([(part, output)])
    progress(len(names), len(names))
    return output


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
