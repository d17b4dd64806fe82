"""Saved embeddings: .npy, .npz, .pt and MegaFace files, ours and other projects', with checks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import Missing
from sphereface2.evaluation.megaface_files import read_feature
from sphereface2.models.unit_rows import Mirror, Vectors, check_rows, check_table, first_of

SUFFIXES = (".npy", ".npz", ".pt", ".pth", ".bin")
# The names under which others keep embeddings in an .npz; the mirror images' beside them.
_KEYS = ("embeddings", "embs", "img_feats", "feats", "features")
_MIRROR_KEYS = ("mirrored", "embs_f", "img_feats_f", "feats_f", "features_f")
_NAME_KEYS = ("names", "img_names", "image_names")
_PEOPLE_KEYS = ("people", "labels", "label")


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
    names: Path | None = None,
    count: int | None = None,
    dim: int | None = None,
    mirrored: bool | None = None,
    check_values: bool = False,
) -> SavedEmbeddings:
    """Embeddings from a file that we, InsightFace or OpenSphere would write.

    .npy: (n, D); (n, 2, D) as OpenSphere holds them, image and mirror image
    .npz: `embeddings`, or InsightFace's `embs` with the mirror images' `embs_f`
    .pt, .pth: a tensor of either shape; .bin: one MegaFace feature

    names: a text file with `name` or `name person` a line; by default the .txt beside the file
    count, dim: what is expected, to be refused otherwise
    mirrored: True if a row is [image | mirror image], as InsightFace's IJB scripts have it (1024
    numbers for 512 dimensions); None takes that for given where `dim` is half the width
    check_values: also look for NaN and zero rows, which costs a pass over the file
    """
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, where one file of embeddings is expected "
            f"({', '.join(SUFFIXES)}); a folder is for a --protocol with several lists: megaface "
            "(facescrub and megaface in it, as tables or feature files), identification "
            "(gallery.npy and probe.npy), tinyface (Gallery_Match.npy, Gallery_Distractor.npy and "
            "Probe.npy)"
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
    check_table(table, source=str(path), rows=count)
    width = table.shape[1]
    if mirror == "given" and (mirrored or (mirrored is None and dim is not None)):
        mirror = "sum" if mirrored or width == 2 * (dim or 0) else "given"
    found = width // 2 if mirror == "sum" else width
    if dim is not None and found != dim:
        raise ValueError(f"{path} has embeddings of {found} dimensions; {dim} are expected")
    if check_values:
        check_rows(table, source=str(path))
    beside = path.with_suffix(".txt")
    if names is not None or (listed is None and beside.is_file()):
        listed, people = _read_names(names or beside, rows=len(table))
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
        raise ValueError(f"{saved.source}: {len(twice):,} names stand twice ({first_of(twice)})")
    lacking = [name for name in names if name not in rows]
    if lacking and missing == "error":
        have = "has" if len(lacking) == 1 else "have"
        raise ValueError(
            f"{saved.source}: {len(lacking):,} of {len(names):,} images of the list {have} no "
            f"embedding ({first_of(lacking)}); --missing skip leaves them out"
        )
    return np.array([rows.get(name, -1) for name in names], dtype=np.intp)


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
    try:
        table: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as .npy ({error}); save a plain array") from None
    return table


def _zipped(path: Path) -> _Read:
    try:
        with np.load(path, allow_pickle=False) as archive:
            held = list(archive.keys())
            key = _first_key(_KEYS, held) or (held[0] if len(held) == 1 else None)
            if key is None:
                raise ValueError(
                    f"has no array of embeddings among {', '.join(held)} (known: "
                    f"{', '.join(_KEYS)})"
                )
            table = archive[key]
            mirror_key = _first_key(_MIRROR_KEYS, held)
            # An empty one is what the script writes when it ran without the mirror images.
            if mirror_key is not None and archive[mirror_key].size:
                mirrored = archive[mirror_key]
                if mirrored.shape != table.shape:
                    raise ValueError(
                        f"has {key} of the shape {table.shape} but {mirror_key} of {mirrored.shape}"
                    )
                table = np.stack([table, mirrored], axis=1)
            name_key, people_key = _first_key(_NAME_KEYS, held), _first_key(_PEOPLE_KEYS, held)
            names = [str(name) for name in archive[name_key]] if name_key else None
            people = archive[people_key] if people_key else None
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return table, names, people


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


def _first_key(known: Sequence[str], held: Sequence[str]) -> str | None:
    return next((key for key in known if key in held), None)


def _read_names(path: Path, *, rows: int) -> tuple[list[str], npt.NDArray[Any] | None]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; it names each embedding, one per line")
    # Names keep their bytes, as Python's paths do; a tab separates names that hold blanks.
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    said = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    lines = [line.split("\t") if "\t" in line else line.split() for line in said]
    if len(lines) != rows:
        raise ValueError(f"{path} has {len(lines):,} names for {rows:,} embeddings")
    people = np.array([parts[1] for parts in lines]) if all(len(p) > 1 for p in lines) else None
    return [parts[0] for parts in lines], people
