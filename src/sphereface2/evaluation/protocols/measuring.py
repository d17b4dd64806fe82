"""From a protocol and what it judges to a result: embed or read the images it names, measure.

All ranks call `measure_protocol`: they share the embedding, the first measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sphereface2.evaluation.embedding_files import SavedEmbeddings, feature_table
from sphereface2.evaluation.protocols.protocol import (
    Embedded,
    Embeddings,
    ImageList,
    Protocol,
    Result,
    is_made,
    require_root,
)
from sphereface2.evaluation.scoring import Subject, rows_of
from sphereface2.training.distributed import current_team


def measure_protocol(
    protocol: Protocol[Result], subject: Subject, root: Path | None
) -> Result | None:
    """The result, with what only this level knows among its conventions; None but on rank 0."""
    team, saved = current_team(), subject.embeddings
    if root is None and saved is not None and saved.is_dir():
        root = saved  # lists and features often lie together
    with team.together(), subject.watch(f"reading the lists of {protocol.name}"):
        if saved is not None and protocol.saved:
            lists = protocol.saved
        else:
            lists = protocol.read(require_root(root, protocol.name))
    found = [_embedded(subject, each, protocol, alone=len(lists) == 1) for each in lists]
    if not team.is_first:
        return None
    embedded = {each.name: _present(subject, one) for each, one in zip(lists, found, strict=True)}
    images = sum(each.present.size for each in embedded.values())
    missing = images - sum(len(each.vectors) for each in embedded.values())
    flip = subject.flip_of(saved)
    with subject.watch(f"measuring {protocol.name}") as progress:
        result = protocol.measure(Embeddings(embedded, flip, subject.calibration(), progress))
    said = list(result.conventions)
    if flip is not None:
        said.append(
            f"embedding of an image: {'with' if flip else 'without'} its mirror image's added"
        )
    if missing:
        said.append(f"{missing:,} of {images:,} images have no embedding and are left out")
    if is_made(root):
        said.append("made data: not the images of the benchmark, not comparable with its numbers")
    return replace(result, conventions=tuple(said), missing_images=missing)


def _embedded(
    subject: Subject, wanted: ImageList, protocol: Protocol[Result], *, alone: bool
) -> Embedded:
    """The embeddings of a list, whether or not all of its images have one."""
    if subject.embeddings is not None:
        return _saved(subject, subject.embeddings, wanted, protocol, alone=alone)
    assert subject.embedder is not None
    assert wanted.images is not None
    assert wanted.names is not None
    with current_team().together():
        images = wanted.images()
    vectors = subject.embedder.extract(
        images,
        subject.output / f"{wanted.name}.npy",
        title=f"embedding {f'the images of {protocol.name}' if alone else wanted.name}",
        names=wanted.names,
        people=wanted.people,
    )
    saved = SavedEmbeddings(vectors, "given", wanted.names, None, wanted.name)
    return _of_list(saved, wanted)


def _saved(
    subject: Subject, path: Path, wanted: ImageList, protocol: Protocol[Result], *, alone: bool
) -> Embedded:
    """Saved embeddings of a list: one file, a part of one file, or a file of a folder."""
    if alone:
        saved = subject.read(path)
    elif path.is_dir():
        saved = _of_folder(subject, path, wanted, protocol)
    else:
        saved = subject.read(path)
        parts = [name.partition("/") for name in saved.names or ()]
        rows = [number for number, part in enumerate(parts) if part[0] == wanted.name]
        if not rows or any(parts[row][2].count("/") < wanted.form.count("/") for row in rows):
            forms = " and ".join(f"{each.name}/{each.form}" for each in protocol.saved or [wanted])
            raise ValueError(
                f"{path}: the names beside it must be {forms}; 'sphereface2 extract MODEL DIR "
                "FILE' on the folder above both writes them so"
            )
        # Who an image shows is for the name to say: the person beside it is `wanted.name`.
        saved = replace(
            saved, vectors=saved.vectors[rows], names=[parts[row][2] for row in rows], people=None
        )
    if wanted.names is not None:
        vectors, _ = rows_of(saved, wanted.names, missing=subject.missing)
        saved = replace(saved, vectors=vectors, names=wanted.names, people=None)
    return _of_list(saved, wanted)


def _of_folder(
    subject: Subject, folder: Path, wanted: ImageList, protocol: Protocol[Result]
) -> SavedEmbeddings:
    """NAME.npy, or a folder NAME of feature files, which are gathered into such a table once."""
    table = folder / f"{wanted.name}.npy"
    if table.is_file():
        return subject.read(table)
    if wanted.names is not None:
        with subject.watch(f"gathering the features of {wanted.name}") as progress:
            gathered = feature_table(
                folder,
                wanted.name,
                wanted.names,
                store=subject.output,
                missing=subject.missing,
                progress=progress,
            )
        # Not `read`: features may have a column more than the model, see `strip_noise_column`.
        return SavedEmbeddings(np.load(gathered, mmap_mode="r"), "given", None, None, str(gathered))
    tables = [f"{each.name}.npy" for each in protocol.saved]
    absent = [name for name in tables if not (folder / name).is_file()]
    raise FileNotFoundError(
        f"{folder} has no {' and no '.join(absent)}; for {protocol.name} the folder holds "
        f"{' and '.join(tables)}, each with a .txt of 'name person' lines beside it"
    )


def _of_list(saved: SavedEmbeddings, wanted: ImageList) -> Embedded:
    people = saved.people if wanted.people is None else np.array(wanted.people)
    names = saved.names or [""] * len(saved.vectors)
    everyone = np.ones(len(saved.vectors), np.bool_)
    return Embedded(saved.vectors, saved.mirror, names, people, everyone, saved.source)


def _present(subject: Subject, each: Embedded) -> Embedded:
    """Without the images that have no embedding, where such are to be left out."""
    absent = subject.absent(each.vectors)
    if not absent.any():
        return each
    rows: Sequence[int] = np.flatnonzero(~absent).tolist()
    return replace(
        each,
        vectors=each.vectors[~absent],
        names=[each.names[row] for row in rows],
        people=None if each.people is None else each.people[~absent],
        present=~absent,
    )
