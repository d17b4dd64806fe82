"""Small IJB-B, IJB-C and MegaFace of rendered people, in the official layout, made once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sphereface2.data.sources.image_file import encode
from sphereface2.data.sources.synthetic import FIRST_UNSEEN, SyntheticImages, renderer_version
from sphereface2.datatools.rendered_ijb import render_ijb
from sphereface2.evaluation.protocols.ijb_files import read_ijb
from sphereface2.evaluation.protocols.protocol import MADE
from sphereface2.files import file_lock, replacing
from sphereface2.registry import look_up
from sphereface2.rendering.person import EVERYDAY
from sphereface2.rendering.surface import SIZE
from sphereface2.workers import Progress, Watch, unwatched, usable_cores

PREFIXES = {"ijb-b": "ijbb", "ijb-c": "ijbc"}
# Far from one another and from the people of the verification sets and of the small IJB.
_FIRST_PROBE = FIRST_UNSEEN + 700_000
_FIRST_DISTRACTOR = FIRST_UNSEEN + 800_000


@dataclass(frozen=True)
class SmallIjb:
    """A gallery template and three probes of each of so many people, some ten images each."""

    people: int
    seed: int

    def make(self, root: Path, *, protocol: str, workers: int, progress: Progress) -> None:
        """Render it; every template is compared with every other, for the sake of low FARs."""
        prefix = PREFIXES[protocol]
        render_ijb(root, people=self.people, seed=self.seed, prefix=prefix, progress=progress)
        ijb = read_ijb(root, name=protocol)
        assert ijb.probes is not None
        lists = (*ijb.galleries, ijb.probes)
        templates = np.concatenate([part.templates for part in lists])
        people = np.concatenate([part.people for part in lists])
        path = root / "meta" / f"{prefix}_template_pair_label.txt"
        path.write_text(_all_pairs(templates, people), encoding="utf-8")


@dataclass(frozen=True)
class SmallMegaFace:
    """`images` probes of each of `people` people, and strangers with `stranger_images` each.

    MegaFace's million has 1.4 images a stranger. All names are right, so the lists of noisy images
    are empty.
    """

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
        names = _write_crops(root / "facescrub", probes, per_person=self.images)
        distractors.prepare(workers=workers, progress=_part(progress, len(probes), total))
        others = _write_crops(root / "megaface", distractors, per_person=self.stranger_images)
        lists = root / "templatelists"
        write_list(
            lists / "facescrub_features_list.json",
            names,
            people=[name.split("/")[0] for name in names],
        )
        write_list(lists / f"megaface_features_list.json_{len(others)}_1", others)
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
    chosen = look_up("protocol", SMALL, protocol) if size is None else size
    if isinstance(chosen, SmallIjb) != (protocol in PREFIXES):
        raise ValueError(f"{protocol} cannot be made with the size of another protocol, {chosen}")
    made = {
        "what": "rendered people",
        "protocol": protocol,
        **asdict(chosen),
        "pairs": "every template with every other" if protocol in PREFIXES else "official",
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


def _all_pairs(templates: npt.NDArray[np.int_], people: npt.NDArray[np.int_]) -> str:
    left, right = np.triu_indices(len(templates), k=1)
    same = (people[left] == people[right]).astype(np.int64)
    columns = (templates[left].tolist(), templates[right].tolist(), same.tolist())
    lines = (f"{first} {second} {label}\n" for first, second, label in zip(*columns, strict=True))
    return "".join(lines)


def _write_crops(folder: Path, images: SyntheticImages, *, per_person: int) -> list[str]:
    """Write crops as PERSON/NUMBER.jpg; their names."""
    names = []
    for index in range(len(images)):
        person, number = divmod(index, per_person)
        name = f"{person:05d}/{number}.jpg"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(images[index], ".jpg", quality=96))
        names.append(name)
    return names


def _part(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


def write_list(path: Path, names: Sequence[str], *, people: Iterable[str] | None = None) -> None:
    """A list of images as the devkit of MegaFace has it."""
    content = {"path": list(names)}
    if people is not None:
        content["id"] = list(people)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
