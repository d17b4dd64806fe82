"""The whole inspection: images, copies and labels, and the files that say what was found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.augmentation import Augmentation
from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.image_list import ImageList
from sphereface2.data.sources.source import Faces
from sphereface2.data.transforms import mirrored, resize
from sphereface2.datatools.inspect import Inspected, inspect_images
from sphereface2.datatools.inspect.images import DuplicateGroup, ImageFacts, examine
from sphereface2.evaluation.embedding_files import rows_of
from sphereface2.evaluation.mislabelled import MislabelledResult, find_mislabelled
from sphereface2.evaluation.scoring import Subject
from sphereface2.evaluation.verification import installed_versions
from sphereface2.files import WorkFolder, csv_text, printable, remove, write_atomically
from sphereface2.models.embedder import Vectors, fold_mirror
from sphereface2.models.extraction import ModelEmbedder, read_note
from sphereface2.workers import Watch, unwatched

REPORT = "inspection.json"


def inspect_data(
    source: EncodedImages,
    folder: Path,
    *,
    title: str,
    root: Path | None = None,
    judge: ModelEmbedder | Path | None = None,
    false_alarms: float = 0.1,
    threshold: float | None = None,
    workers: int = 1,
    watch: Watch = unwatched,
) -> tuple[Inspected, ImageFacts]:
    """Look at all images of a source and write what was found into `folder`, as lists and JSON.

    root: where the paths of a list start from, for the list of images that are not suspect
    judge: what labels are judged by: a model, or embeddings that were saved
    false_alarms: the share of the suspects that may be labelled rightly; threshold: instead, the
        margin (own less other) below which an image is suspect
    """
    with watch("looking at the images") as progress:
        facts = examine(source, workers=workers, progress=progress)
    with watch("comparing copies") as progress:
        inspection, groups = inspect_images(source, facts, progress=progress)
    name = judge.folder if isinstance(judge, ModelEmbedder) else judge
    labels = None
    if judge is not None:
        vectors = _vectors(source, facts, folder, judge)
        with watch("judging the labels") as progress:
            result = find_mislabelled(
                vectors,
                source.labels[facts.readable],
                false_alarms=false_alarms,
                threshold=threshold,
                progress=progress,
            )
        labels = _of_images(result, source, facts)
    inspected = Inspected(
        title=title,
        data=inspection,
        model=None if name is None else str(name),
        labels=labels,
        versions=installed_versions(),
    )
    _write_lists(folder, source, facts, groups, labels, root=root)
    inspected.save(folder / REPORT)
    return inspected, facts


def _vectors(
    source: EncodedImages, facts: ImageFacts, folder: Path, judge: ModelEmbedder | Path
) -> Vectors:
    """The embeddings of the readable images, in their order, by a model or from a file."""
    numbers = np.flatnonzero(facts.readable)
    if isinstance(judge, Path):
        saved = Subject(None, judge, Path()).read(judge)
        return fold_mirror(*rows_of(saved, [source.name(number) for number in numbers.tolist()]))
    # Those of the same model and images are taken as they are or resumed, others replaced.
    key, path = embedding_key(judge.folder, facts.digest[numbers]), folder / "embeddings.npy"
    begun = WorkFolder(path)
    if (read_note(path) or {}).get("pictures") != key:
        remove(path)
    if (begun.noted() or {"pictures": key}).get("pictures") != key:
        remove(begun.path)
    return judge.extract(Faces(source, numbers), path, title="embedding the images", digest=key)


def embedding_key(model: Path, digests: NDArray[np.uint64]) -> str:
    """A name for the embeddings of images with these digests by the model in this folder."""
    summary = hashlib.blake2b(digests.tobytes(), digest_size=16)
    for file in sorted(model.iterdir()):
        with file.open("rb") as content:
            summary.update(hashlib.file_digest(content, "sha256").digest())
    return summary.hexdigest()


def _of_images(
    result: MislabelledResult, source: EncodedImages, facts: ImageFacts
) -> MislabelledResult:
    """About the images of the source: the rows of the embeddings are those that are readable."""
    numbers = np.flatnonzero(facts.readable)

    def images(rows: Sequence[int]) -> tuple[int, ...]:
        return tuple(numbers[list(rows)].tolist())

    result = replace(
        result,
        suspects=tuple(
            replace(
                suspect,
                index=int(numbers[suspect.index]),
                examples=images(suspect.examples),
                other_examples=images(suspect.other_examples),
            )
            for suspect in result.suspects
        ),
        split=tuple(replace(each, part=images(each.part)) for each in result.split),
    )
    return result.named(source.people, lambda index: printable(source.name(index)))


# What is written beside the result. A list with nothing to say is taken away.


def _write_lists(
    folder: Path,
    source: EncodedImages,
    facts: ImageFacts,
    groups: Sequence[DuplicateGroup],
    labels: MislabelledResult | None,
    *,
    root: Path | None,
) -> None:
    unreadable = [f"{bad.location}\t{bad.reason}\n" for bad in facts.bad]
    unreadable += [
        f"{printable(source.path / name)}\t{why}\n" for name, why in source.unread.items()
    ]
    duplicates = [
        (number, group.kind, group.across_people, source.person(i), printable(source.name(i)))
        for number, group in enumerate(groups, start=1)
        for i in group.images
    ]
    titles = ("group", "kind", "across_people", "person", "image")
    for name, text in (
        ("unreadable.txt", "".join(unreadable)),
        ("duplicates.csv", csv_text(titles, duplicates) if duplicates else ""),
    ):
        if text:
            write_atomically(folder / name, text)
        else:
            (folder / name).unlink(missing_ok=True)
    if labels is None:
        return
    rows = [
        (s.image, s.person, s.kind, s.other_person, f"{s.own:.4f}", f"{s.other:.4f}", s.chance)
        for s in labels.suspects
    ]
    head = ("image", "person", "kind", "nearest_other", "own", "other", "chance")
    write_atomically(folder / "suspects.csv", csv_text(head, rows))
    left = facts.readable.copy()
    left[[suspect.index for suspect in labels.suspects]] = False
    kept = np.flatnonzero(left).tolist()
    write_atomically(folder / "clean.txt", clean_list(source, kept, root=root))


def clean_list(source: EncodedImages, numbers: Iterable[int], *, root: Path | None = None) -> str:
    """A line `path<TAB>person` for each of the images.

    The paths of a folder start from the folder, those of a list from `root` or else its folder, as
    its own do; an image of a .rec or .parquet file has the path that `sphereface2 convert` gives
    it in a folder.
    """
    lines = []
    for number in numbers:
        person = source.person(number) if source.labels[number] >= 0 else "-1"
        lines.append(f"{_path(source, number, root)}\t{person}\n")
    return "".join(lines)


def _path(source: EncodedImages, number: int, root: Path | None) -> str:
    if not isinstance(source, ImageList):
        return source.name(number)
    path = source.image_path(number)
    start = source.path.parent if root is None else root
    return (path.relative_to(start) if path.is_relative_to(start) else path.absolute()).as_posix()


# -- examples of an augmentation: some images of the data as a training would see them -------------

IMAGES, EPOCHS = 12, 8


@dataclass(frozen=True, eq=False)
class AugmentedImage:
    """An image as it is, at the network's size, and as it is seen in the first epochs."""

    name: str
    original: NDArray[np.uint8]
    seen: tuple[NDArray[np.uint8], ...]
    others: tuple[NDArray[np.uint8], ...]
    """In other proportions, as another person."""


def augmented_examples(
    source: EncodedImages, augmentation: Augmentation, *, size: int | None = None
) -> tuple[AugmentedImage, ...]:
    """A dozen images from all over the data; `size` is the network's, the image's own if None."""
    # Three times as many as are shown: some may be unreadable, which is not reported here.
    places = np.linspace(0, len(source) - 1, 3 * IMAGES).round().astype(np.int64)
    # The first of every three, then the others, and each image once.
    order = np.concatenate([places[start::3] for start in (0, 1, 2)])
    chosen: dict[int, NDArray[np.uint8]] = {}
    problem: ValueError | OSError | None = None
    for index in dict.fromkeys(order.tolist()):
        if len(chosen) == IMAGES:
            break
        try:
            chosen[index] = source[index][0]
        except (ValueError, OSError) as error:
            problem = error
    if problem is not None and not chosen:
        raise problem
    return tuple(
        _example(source, index, image, augmentation, size=size or min(image.shape[:2]))
        for index, image in sorted(chosen.items())
    )


def _example(
    source: EncodedImages,
    index: int,
    image: NDArray[np.uint8],
    augmentation: Augmentation,
    *,
    size: int,
) -> AugmentedImage:
    numbers = np.array([index])
    seen: list[NDArray[np.uint8]] = []
    others: list[NDArray[np.uint8]] = []
    for epoch in range(EPOCHS):
        place = np.empty((size, size, 3), np.uint8)
        (draw,) = augmentation.draw(numbers, seed=0, epoch=epoch)
        mirror = bool(mirrored(numbers, seed=0, epoch=epoch)[0])
        augmentation.fill(place, image, draw, mirror=mirror)
        (others if augmentation.shape(draw) else seen).append(place)
    name = printable(source.name(index))
    return AugmentedImage(name, resize(image, size), tuple(seen), tuple(others))
