"""Small IJB-B, IJB-C and MegaFace of rendered people, in the official layout.

Unlike the generated embeddings of full size, they have images. Those of IJB are loosely cropped
photos with landmarks, so that the whole path runs, from aligning by the points of the list to the
result; its templates are stills and video frames.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import encode
from sphereface2.data.sources.synthetic import (
    FIRST_UNSEEN,
    SyntheticImages,
    renderer_version,
    sample_conditions,
)
from sphereface2.evaluation.protocols.protocol import MADE
from sphereface2.faces.face import TEMPLATE
from sphereface2.files import file_lock, replacing
from sphereface2.registry import look_up
from sphereface2.rendering.person import EVERYDAY, Conditions, Person, draw_person
from sphereface2.rendering.renderer import render
from sphereface2.rendering.surface import SIZE
from sphereface2.workers import Progress, Watch, unseen, unwatched, usable_cores

# Far from one another and from the people of the verification sets.
_FIRST_PERSON = FIRST_UNSEEN + 500_000
_FIRST_PROBE = FIRST_UNSEEN + 700_000
_FIRST_DISTRACTOR = FIRST_UNSEEN + 800_000
_STREAM = 7
_FRAMES = (2, 4)
_COLUMNS = "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT"
# The files of meta/, behind the prefix.
_MEDIA, _POINTS = "face_tid_mid.txt", "name_5pts_score.txt"
_GALLERIES, _PROBE = ("1N_gallery_G1.csv", "1N_gallery_G2.csv"), "1N_probe_mixed.csv"
# A template's sightings: "still" is one image, "video" a few frames of one recording.
_GALLERY = ("still", "still")
_PROBES = (("still",), ("video", "still"), ("video",))


@dataclass(frozen=True)
class _Shot:
    """One image: whom it shows, in which template and recording, and under which conditions."""

    person: int
    """Counted from 0."""
    looks: Person
    template: int
    media: int
    conditions: Conditions


def render_ijb(
    root: Path,
    *,
    people: int = 60,
    seed: int = 0,
    prefix: str = "ijbc",
    every_pair: bool = False,
    progress: Progress = unseen,
) -> int:
    """Write meta/ and loose_crop/ below `root`; the number of images.

    Half of the people are in each gallery, so that the probes of the others are non-mated there.
    The pairs are every gallery template with every probe, or every template with every other.
    """
    if people < 4:
        raise ValueError(f"small IJB: people must be at least 4, got {people}")
    if seed < 0:
        raise ValueError(f"small IJB: seed must not be negative, got {seed}")
    shots = list(_shots(people, seed))
    (root / "meta").mkdir(parents=True)
    (root / "loose_crop").mkdir()
    lists: dict[str, list[str]] = {
        **{name: [] for name in (_MEDIA, _POINTS)},
        **{name: [_COLUMNS] for name in (*_GALLERIES, _PROBE)},
        "template_pair_label.txt": _pairs(people, every=every_pair),
    }
    for number, shot in enumerate(shots, start=1):
        name = f"{number}.jpg"
        picture, points = _loose(shot, rng=np.random.default_rng((seed, number, _STREAM)))
        (root / "loose_crop" / name).write_bytes(encode(picture, ".jpg", quality=96))
        lists[_MEDIA].append(f"{name} {shot.template} {shot.media}")
        places = " ".join(f"{value:.3f}" for value in points.reshape(-1))
        lists[_POINTS].append(f"{name} {places} {_detector_score(shot.conditions):.3f}")
        side = picture.shape[0]
        row = f"{shot.template},{shot.person + 1},{name},{shot.media},0,0,{side},{side}"
        lists[_PROBE if shot.template > people else _GALLERIES[shot.person % 2]].append(row)
        progress(number, len(shots))
    for ending, lines in lists.items():
        text = "\n".join(lines) + "\n"
        (root / "meta" / f"{prefix}_{ending}").write_text(text, encoding="utf-8")
    made = {"what": "rendered people", "people": people, "images": len(shots), "seed": seed}
    (root / MADE).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return len(shots)


def _template(person: int, number: int, people: int) -> int:
    """Templates 1 to `people` are the gallery, the probes follow."""
    if number == 0:
        return person + 1
    return people + person * len(_PROBES) + number


def _shots(people: int, seed: int) -> Iterator[_Shot]:
    media = 0
    for person in range(people):
        identity, sample = _FIRST_PERSON + person, 0
        looks = draw_person(seed, identity)
        for number, sightings in enumerate((_GALLERY, *_PROBES)):
            template = _template(person, number, people)
            for kind in sightings:
                media += 1
                conditions = sample_conditions(identity, sample, seed=seed)
                if kind == "still":
                    yield _Shot(person, looks, template, media, conditions)
                else:
                    rng = np.random.default_rng((seed, identity, sample, _STREAM))
                    for frame in _frames(conditions, rng):
                        yield _Shot(person, looks, template, media, frame)
                sample += 1


def _frames(first: Conditions, rng: np.random.Generator) -> Iterator[Conditions]:
    """Frames of one recording: one age, light, hair and place; pose and expression drift."""
    for _ in range(int(rng.integers(_FRAMES[0], _FRAMES[1] + 1))):
        drift = rng.normal(size=8)
        yield replace(
            first,
            yaw=float(np.clip(first.yaw + 5 * drift[0], -68, 68)),
            pitch=float(np.clip(first.pitch + 3 * drift[1], -20, 20)),
            roll=float(np.clip(first.roll + 2 * drift[2], -9, 9)),
            smile=float(np.clip(first.smile + 0.15 * drift[3], -0.5, 1)),
            mouth_open=float(np.clip(first.mouth_open + 0.2 * drift[4], 0, 1)),
            brow_raise=float(np.clip(first.brow_raise + 0.15 * drift[5], -1, 1)),
            gaze_x=float(np.clip(first.gaze_x + 0.15 * drift[6], -0.7, 0.7)),
            shift_x=float(np.clip(first.shift_x + 0.5 * drift[7], -3, 3)),
            blur=max(first.blur, 0.7),  # video is softer than a photo
        )


def _loose(
    shot: _Shot, *, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """The face somewhere in a larger picture, turned and scaled, and where its five points are."""
    face = render(shot.looks, shot.conditions)
    scale = float(rng.uniform(1.1, 1.9))
    angle = np.deg2rad(float(rng.normal(0, 12)))
    side = int(SIZE * scale * rng.uniform(1.35, 1.7))
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = np.full(2, (SIZE - 1) / 2)
    centre = np.full(2, (side - 1) / 2) + rng.normal(0, 0.03 * side, 2)
    matrix = np.column_stack([turn, centre - turn @ middle])
    picture = cv2.warpAffine(
        face, matrix, (side, side), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    inside = cv2.warpAffine(np.ones((SIZE, SIZE), np.uint8), matrix, (side, side))
    # Beyond the rendered part lies a soft background, not the streaks of its edge.
    coarse = cv2.resize(picture, (12, 12), interpolation=cv2.INTER_AREA)
    soft = cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC)
    picture = np.where(inside[:, :, None] > 0, picture, soft)
    points = TEMPLATE @ matrix[:, :2].T + matrix[:, 2]
    return np.asarray(picture, np.uint8), points


def _detector_score(conditions: Conditions) -> float:
    """What a detector might say: less of turned, blurred and covered faces."""
    covered = conditions.accessory in ("mask", "sunglasses", "hand")
    turned, soft = abs(conditions.yaw) / 68, conditions.blur / 1.3
    return 0.999 - 0.25 * turned**2 - 0.1 * soft - 0.15 * covered


def _pairs(people: int, *, every: bool) -> list[str]:
    everybody = range(people)
    galleries = [(_template(who, 0, people), who) for who in (*everybody[::2], *everybody[1::2])]
    numbers = range(1, len(_PROBES) + 1)
    probes = [(_template(who, number, people), who) for who in everybody for number in numbers]
    pairs = combinations(galleries + probes, 2) if every else product(sorted(galleries), probes)
    return [f"{left} {right} {int(one == other)}" for (left, one), (right, other) in pairs]


# -- benchmarks that are made once ----------------------------------------------------------------


@dataclass(frozen=True)
class SmallIjb:
    """A gallery template and three probes of each of so many people, some ten images each."""

    PAIRS: ClassVar[str] = "every template with every other"

    people: int
    seed: int

    def make(self, root: Path, *, protocol: str, workers: int, progress: Progress) -> None:
        """Render it; every template is compared with every other, for the sake of low FARs."""
        render_ijb(
            root,
            people=self.people,
            seed=self.seed,
            prefix=protocol.replace("-", ""),
            every_pair=True,
            progress=progress,
        )


@dataclass(frozen=True)
class SmallMegaFace:
    """`images` probes of each of `people` people, and strangers with `stranger_images` each.

    MegaFace's million has 1.4 images per stranger. All names are right, so the lists of noisy
    images are empty.
    """

    PAIRS: ClassVar[str] = "official"

    people: int
    images: int
    strangers: int
    stranger_images: int
    seed: int

    def make(self, root: Path, *, protocol: str, workers: int, progress: Progress) -> None:
        """Render both kinds of images and write the lists."""
        probes = SyntheticImages(
            self.people, [EVERYDAY] * self.images,
            image_size=SIZE, seed=self.seed, first_person=_FIRST_PROBE,
        )  # fmt: skip
        distractors = SyntheticImages(
            self.strangers, [EVERYDAY] * self.stranger_images,
            image_size=SIZE, seed=self.seed, first_person=_FIRST_DISTRACTOR,
        )  # fmt: skip
        total = len(probes) + len(distractors)
        probes.prepare(workers=workers, progress=_part(progress, 0, total))
        shown = _write_crops(root / "facescrub", probes, per_person=self.images)
        distractors.prepare(workers=workers, progress=_part(progress, len(probes), total))
        others = _write_crops(root / "megaface", distractors, per_person=self.stranger_images)
        lists = root / "templatelists"
        write_list(lists / "facescrub_features_list.json", list(shown), people=shown.values())
        write_list(lists / f"megaface_features_list.json_{len(others)}_1", list(others))
        for kind in ("facescrub", "megaface"):
            text = "# none: every rendered image shows whom its name says\n"
            (root / f"{kind}_noises.txt").write_text(text, encoding="utf-8")


SmallSize = SmallIjb | SmallMegaFace
# FAR 1e-5 and FPR 1e-6 lie at the 3rd impostor of IJB-B, the 12th of IJB-C, the 3rd of MegaFace.
SMALL: Mapping[str, SmallSize] = {
    "ijb-b": SmallIjb(people=200, seed=21),
    "ijb-c": SmallIjb(people=400, seed=22),  # about twice as large, as in the paper
    "megaface": SmallMegaFace(people=80, images=12, strangers=1_600, stranger_images=2, seed=23),
}


def small_root(
    protocol: str,
    folder: Path,
    *,
    size: SmallSize | None = None,
    workers: int | None = None,
    watch: Watch = unwatched,
) -> Path:
    """The folder of a small benchmark below `folder`, rendered if it is not there yet.

    Its name holds a digest of its size and of the renderer: another size, seed or renderer makes
    another folder. `workers` processes render MegaFace, by default one per core.
    """
    usual = look_up("protocol", SMALL, protocol)
    chosen = usual if size is None else size
    if type(chosen) is not type(usual):
        raise ValueError(f"{protocol} cannot be made with the size of another protocol, {chosen}")
    made = {
        "what": "rendered people",
        "protocol": protocol,
        **asdict(chosen),
        "pairs": chosen.PAIRS,
        "renderer": renderer_version(),
    }
    text = json.dumps(made, indent=1) + "\n"
    name = f"{protocol}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    place = folder / name
    if place.is_dir():
        return place
    with file_lock(folder / f".{name}.lock"):
        if place.is_dir():  # another process was faster, with the same images
            return place
        with replacing(place) as root, watch(f"rendering a small {protocol}") as progress:
            count = usable_cores() if workers is None else workers
            chosen.make(root, protocol=protocol, workers=count, progress=progress)
            (root / MADE).write_text(text, encoding="utf-8")
    return place


def _write_crops(folder: Path, images: SyntheticImages, *, per_person: int) -> dict[str, str]:
    """Write crops as PERSON/NUMBER.jpg; the person of each."""
    people = {}
    for index in range(len(images)):
        person, number = divmod(index, per_person)
        name = f"{person:05d}/{number}.jpg"
        people[name] = f"{person:05d}"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(images[index], ".jpg", quality=96))
    return people


def _part(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


def write_list(path: Path, names: Sequence[str], *, people: Iterable[str] | None = None) -> None:
    """A list of images as the devkit of MegaFace has it."""
    content = {"path": list(names)}
    if people is not None:
        content["id"] = list(people)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
