"""IJB-B and IJB-C on disk, as NIST and InsightFace lay them out; millions of pairs in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.protocols.ijb_templates import Ids, TemplateList
from sphereface2.workers import first_of

TITLES = {"ijbb": "ijb-b", "ijbc": "ijb-c"}
_CHUNK = 1 << 24  # bytes of text parsed at once
_MOST = (1 << 63) - 1  # the largest id


@dataclass(frozen=True, eq=False)
class IjbSet:
    """The lists of IJB-B or IJB-C; images are numbered as in the list of names.

    landmarks: (n, 5, 2); detector_scores: (n,); templates, media: (n,) ids of each image
    pairs: (m, 2) template ids; same: (m,)
    """

    name: str
    image_names: Sequence[str]
    landmarks: npt.NDArray[np.float32]
    detector_scores: npt.NDArray[np.float32]
    templates: Ids
    media: Ids
    pairs: Ids
    same: npt.NDArray[np.bool_]
    galleries: tuple[TemplateList, ...]
    probes: TemplateList | None

    def __len__(self) -> int:
        return len(self.templates)

    def without(self, absent: npt.NDArray[np.bool_]) -> IjbSet:
        """The lists without these images, and without the templates that then have none."""
        left = self.templates[~absent]

        def listed(part: TemplateList) -> TemplateList:
            there = np.isin(part.templates, left)
            return TemplateList(part.name, part.templates[there], part.people[there])

        both = np.isin(self.pairs, left).all(axis=1)
        return replace(
            self,
            image_names=[
                name for name, out in zip(self.image_names, absent, strict=True) if not out
            ],
            landmarks=self.landmarks[~absent],
            detector_scores=self.detector_scores[~absent],
            templates=left,
            media=self.media[~absent],
            pairs=self.pairs[both],
            same=self.same[both],
            galleries=tuple(listed(gallery) for gallery in self.galleries),
            probes=None if self.probes is None else listed(self.probes),
        )


def read_ijb(root: Path, *, name: str | None = None, identification: bool = True) -> IjbSet:
    """All lists of one set.

    root: the folder with `meta/`, `meta/` itself, or the folder that holds IJBB/ and IJBC/
    name: "ijb-b" or "ijb-c"; needed only where both are found
    identification: also read the gallery and probe lists, which must then be there
    """
    folder, prefix = _find(root, name)
    title = TITLES.get(prefix, prefix)
    path = folder / f"{prefix}_face_tid_mid.txt"  # `image template media` in each line
    fields = _fields(path, columns=3)
    names, templates, media = fields[0::3], _whole(path, fields[1::3]), _whole(path, fields[2::3])
    listed, landmarks, scores = _read_points(folder / f"{prefix}_name_5pts_score.txt")
    _check_names(folder, prefix, names, listed)
    pairs, same = read_pairs(folder / f"{prefix}_template_pair_label.txt")
    galleries: tuple[TemplateList, ...] = ()
    probes = None
    if identification:
        paths = sorted(folder.glob(f"{prefix}_1N_gallery_*.csv"))
        if not paths:
            raise FileNotFoundError(
                f"{folder} has no {prefix}_1N_gallery_*.csv; the 1:N protocol needs the galleries"
            )
        galleries = tuple(
            read_template_list(path, name=path.stem.rsplit("_", 1)[-1]) for path in paths
        )
        probes = read_template_list(folder / f"{prefix}_1N_probe_mixed.csv", name="probes")
    return IjbSet(
        name=title,
        image_names=names,
        landmarks=landmarks,
        detector_scores=scores,
        templates=templates,
        media=media,
        pairs=pairs,
        same=same,
        galleries=galleries,
        probes=probes,
    )


def image_folder(root: Path, *, name: str | None = None) -> Path:
    """Where the loosely cropped images lie: `loose_crop` beside `meta`."""
    folder, _ = _find(root, name)
    images = folder.parent / "loose_crop"
    if not images.is_dir():
        raise FileNotFoundError(f"{images} does not exist; it should hold the images of the list")
    return images


def read_pairs(path: Path) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """(m, 2) template ids and (m,) whether they are of one person: `id id 0|1` in each line."""
    table = _integers(path, columns=3)
    wrong = np.flatnonzero((table[:, 2] != 0) & (table[:, 2] != 1))
    if wrong.size:
        raise ValueError(
            f"{path}: {wrong.size:,} pairs have a label other than 0 and 1 (line "
            f"{first_of((wrong + 1).tolist())})"
        )
    return table[:, :2], table[:, 2] == 1


def read_template_list(path: Path, *, name: str) -> TemplateList:
    """A gallery or probe list: csv with a header, a row per image, each template kept once."""
    lines = _lines(path)
    header = [field.strip().upper() for field in lines[0].split(",")]
    if "TEMPLATE_ID" not in header or "SUBJECT_ID" not in header:
        raise ValueError(
            f"{path} must start with a header that has TEMPLATE_ID and SUBJECT_ID, got "
            f"'{lines[0][:80]}'"
        )
    place, person = header.index("TEMPLATE_ID"), header.index("SUBJECT_ID")
    last = max(place, person) + 1
    people: dict[int, int] = {}
    torn: list[int] = []
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split(",", last)
        try:
            template, subject = int(fields[place]), int(fields[person])
            if max(abs(template), abs(subject)) > _MOST:
                raise ValueError
        except (ValueError, IndexError):
            raise ValueError(
                f"{path}, line {number}: '{line[:60]}' has no whole numbers for template and "
                "subject"
            ) from None
        if people.setdefault(template, subject) != subject:
            torn.append(template)
    if not people:
        raise ValueError(f"{path} lists no template")
    if torn:
        torn = list(dict.fromkeys(torn))
        raise ValueError(
            f"{path}: {len(torn):,} template ids stand for several people (template "
            f"{first_of(torn)})"
        )
    return TemplateList(
        name,
        np.fromiter(people.keys(), dtype=np.int64, count=len(people)),
        np.fromiter(people.values(), dtype=np.int64, count=len(people)),
    )


def _find(root: Path, name: str | None) -> tuple[Path, str]:
    """The folder of the lists and the prefix of their names."""
    if name is not None and name not in TITLES.values():
        raise ValueError(f"unknown set '{name}' (known: {', '.join(TITLES.values())})")
    folders = [root, root / "meta", *sorted(root.glob("*/meta")), *sorted(root.glob("*/*/meta"))]
    found = [
        (path.parent, path.name.removesuffix("_face_tid_mid.txt"))
        for folder in folders
        for path in sorted(folder.glob("*_face_tid_mid.txt"))
    ]
    if name is not None:
        found = [(folder, prefix) for folder, prefix in found if TITLES.get(prefix) == name]
    if not found:
        wanted = next((p for p, title in TITLES.items() if title == name), "ijbc")
        raise FileNotFoundError(
            f"{root} has no meta/{wanted}_face_tid_mid.txt; give the folder that holds meta/"
        )
    if len({prefix for _, prefix in found}) > 1:
        raise ValueError(f"{root} holds several sets; name one of {', '.join(TITLES.values())}")
    return found[0]


def _read_points(
    path: Path,
) -> tuple[list[str], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """`image x1 y1 ... x5 y5 score` in each line."""
    fields = _fields(path, columns=12)
    names = fields[0::12]
    del fields[0::12]
    try:
        numbers = np.array(fields, dtype=np.float32).reshape(-1, 11)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; only numbers may follow the image name") from None
    return names, numbers[:, :10].reshape(-1, 5, 2), numbers[:, 10].copy()


def _check_names(folder: Path, prefix: str, names: Sequence[str], listed: Sequence[str]) -> None:
    if names == listed:
        return
    differ = [
        f"line {number + 1}: {left} and {right}"
        for number, (left, right) in enumerate(zip(names, listed, strict=False))
        if left != right
    ]
    raise ValueError(
        f"{folder}: {prefix}_face_tid_mid.txt has {len(names):,} images and "
        f"{prefix}_name_5pts_score.txt {len(listed):,}, and {len(differ):,} lines name different "
        f"ones ({first_of(differ) if differ else 'one list ends early'}); both must name the same "
        "images in the same order"
    )


def _integers(path: Path, *, columns: int) -> npt.NDArray[np.int32]:
    """A text table of whole numbers, parsed by numpy in chunks of whole lines."""
    parts: list[npt.NDArray[np.int32]] = [np.empty(0, np.int32)]
    lines = 0
    with _open(path) as file:
        while text := file.read(_CHUNK) + file.readline():
            part = _numbers(text)
            count = text.count(b"\n") + (not text.endswith(b"\n") and bool(text.strip()))
            if part is None or part.size != columns * count:
                _refuse_line(path, text, columns, before=lines)
            else:
                parts.append(part)
            lines += count
    table = np.concatenate(parts).reshape(-1, columns)
    if not len(table):
        raise ValueError(f"{path} is empty")
    return table


def _numbers(text: bytes) -> npt.NDArray[np.int32] | None:
    # numpy warns of what it cannot read and continues; bytes outside of these are looked for first.
    if text.translate(None, b"0123456789 \t\r\n"):
        return None
    if not text.strip():
        return np.empty(0, np.int32)
    numbers = np.fromstring(text, dtype=np.int64, sep=" ")
    return numbers.astype(np.int32) if numbers.max() < 1 << 31 else None


def _refuse_line(path: Path, text: bytes, columns: int, *, before: int) -> None:
    lines = text.decode("utf-8", "replace").splitlines()
    wrong = [
        number
        for number, line in enumerate(lines, start=before + 1)
        if len(line.split()) != columns
        or not all(
            each.isdecimal() and len(each) <= 10 and int(each) < 1 << 31 for each in line.split()
        )
    ]
    shown = lines[wrong[0] - before - 1][:60] if wrong else ""
    raise ValueError(
        f"{path}: {len(wrong):,} lines are not {columns} whole numbers (line {first_of(wrong)}: "
        f"'{shown}')"
    )


def _fields(path: Path, *, columns: int) -> list[str]:
    with _open(path) as file:
        text = file.read().decode("utf-8", "surrogateescape")  # a name keeps its bytes
    fields = text.split()
    lines = text.count("\n") + (not text.endswith("\n") and bool(text))
    if not fields or len(fields) != columns * lines:
        wrong = [
            number
            for number, line in enumerate(text.splitlines(), start=1)
            if len(line.split()) != columns
        ]
        raise ValueError(
            f"{path}: {len(wrong):,} lines have not {columns} fields (line {first_of(wrong)})"
            if wrong
            else f"{path} is empty"
        )
    return fields


def _whole(path: Path, fields: Sequence[str]) -> npt.NDArray[np.int64]:
    try:
        return np.array(fields, dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path}: {error}; template and media ids are whole numbers") from None


def _lines(path: Path) -> list[str]:
    with _open(path) as file:
        text = file.read().decode("utf-8", "surrogateescape")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty")
    return lines


def _open(path: Path) -> BinaryIO:
    if not path.is_file():
        near = sorted(each.name for each in path.parent.glob("*.*"))
        raise FileNotFoundError(
            f"{path} does not exist; the folder has {first_of(near) if near else 'no files'}"
        )
    return path.open("rb")
