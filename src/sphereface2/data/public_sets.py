"""The paper's data sets in one folder: found by the names that they are known by.

    DIR/vggface2/PERSON/*.jpg       or vggface2.rec, faces_vgg_112x112/train.rec, ...
    DIR/ms1m-retinaface-t1/train.rec
    DIR/lfw.bin agedb_30.bin calfw.bin cplfw.bin
    DIR/IJBB/meta/ DIR/IJBC/meta/ DIR/megaface/templatelists/

Training sets may also lie in DIR/train/, verification sets in DIR/val/ or beside a train.rec.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sphereface2.data.sources import form_of
from sphereface2.files import printable
from sphereface2.registry import look_up, near, nearest

# The sizes of the public training sets, and the recipes that are made for them.


@dataclass(frozen=True)
class KnownData:
    """A training set as its publishers count it."""

    title: str
    images: int
    people: int
    counted_by: str


_ARCFACE_TORCH = "arcface_torch"
KNOWN_DATA: dict[str, KnownData] = {
    "vggface2": KnownData("VGGFace2", 3_141_890, 8_631, "its authors, training part"),
    "ms1mv2": KnownData("MS1MV2", 5_822_653, 85_742, _ARCFACE_TORCH),
    "ms1mv3": KnownData("MS1MV3", 5_179_510, 93_431, _ARCFACE_TORCH),
    "webface4m": KnownData("WebFace4M", 4_235_242, 205_990, _ARCFACE_TORCH),
    "webface12m": KnownData("WebFace12M", 12_720_066, 617_970, _ARCFACE_TORCH),
    "webface42m": KnownData("WebFace42M", 42_474_557, 2_059_906, _ARCFACE_TORCH),
}

# What the built-in recipes are made for, where that is a public set; others that do come after it.
_OF_RECIPE: dict[str, tuple[str, ...]] = {
    "vggface2-sfnet20": ("vggface2",),
    "vggface2-sfnet64": ("vggface2",),
    "ms1mv3-iresnet100": ("ms1mv3",),
    "webface-iresnet100": ("webface12m", "webface4m", "webface42m"),
}


def known_data_of(recipe: str) -> tuple[str, ...]:
    """The keys in `KNOWN_DATA` for a built-in recipe, the set that it is made for first."""
    return _OF_RECIPE.get(recipe, ())


PAIR_SET_TITLES = {"lfw": "LFW", "agedb_30": "AgeDB-30", "calfw": "CA-LFW", "cplfw": "CP-LFW"}
"""The verification sets, a NAME.bin each, and what the paper calls them."""

# The names of folders and .rec files, after `_plain`, that a training set goes by.
_NAMES: dict[str, tuple[str, ...]] = {
    "vggface2": ("vggface2", "vgg2", "facesvgg", "vggface2train"),
    "ms1mv2": ("ms1mv2", "facesemore", "ms1mrefine", "ms1mrefinev2", "ms1marcface"),
    "ms1mv3": ("ms1mv3", "ms1mretinaface", "ms1mretinafacet1"),
    "webface4m": ("webface4m",),
    "webface12m": ("webface12m",),
    "webface42m": ("webface42m",),
}
_LOOKED_FOR: dict[str, str] = {
    "vggface2": "vggface2/, vggface2.rec or faces_vgg_112x112/train.rec",
    "ms1mv2": "faces_emore/train.rec, ms1mv2/ or ms1mv2.rec",
    "ms1mv3": "ms1m-retinaface-t1/train.rec, ms1mv3/ or ms1mv3.rec",
    "webface4m": "WebFace4M/train.rec, webface4m/ or webface4m.rec",
    "webface12m": "WebFace12M/train.rec, webface12m/ or webface12m.rec",
    "webface42m": "WebFace42M/train.rec, webface42m/ or webface42m.rec",
    **{name: f"{name}.bin" for name in PAIR_SET_TITLES},
    "ijb-b": "IJBB/meta/ijbb_face_tid_mid.txt",
    "ijb-c": "IJBC/meta/ijbc_face_tid_mid.txt",
    "megaface": "megaface/templatelists/",
}
_TITLES = {
    **{key: data.title for key, data in KNOWN_DATA.items()},
    **PAIR_SET_TITLES,
    "ijb-b": "IJB-B",
    "ijb-c": "IJB-C",
    "megaface": "MegaFace",
}


@dataclass(frozen=True)
class TrainingData:
    """Training images: the name of their source, as in a config, and their place."""

    source: str
    path: Path


@dataclass(frozen=True)
class PaperData:
    """What a folder holds of the paper's data, by the names of `KNOWN_DATA`, sets and protocols."""

    root: Path
    training: Mapping[str, TrainingData] = field(default_factory=dict)
    sets: Mapping[str, Path] = field(default_factory=dict)
    protocols: Mapping[str, Path] = field(default_factory=dict)
    """What `--root` is to be for each protocol."""

    def overrides(self, training: str, *, all_sets: bool = True) -> tuple[str, ...]:
        """What turns a recipe to these data: its images, and all verification sets of the paper.

        A FileNotFoundError says what is missing. Without `all_sets` those that are there will do.
        """
        self.require(training, *(PAIR_SET_TITLES if all_sets else ()))
        images = self.training[training]
        data = f"data={_flow(name=images.source, path=images.path)}"
        sets = ", ".join(
            _flow(name="bin", path=self.sets[name], title=title)
            for name, title in PAIR_SET_TITLES.items()
            if name in self.sets
        )
        return (data, f"evaluation.sets=[{sets}]") if sets else (data,)

    def missing(self, *names: str) -> str | None:
        """One sentence on those of `names` that are not there; None if all are."""
        there = {*self.training, *self.sets, *self.protocols}
        for name in names:
            look_up("data set", _TITLES, name)
        absent = [name for name in names if name not in there]
        if not absent:
            return None
        entries = [entry.name for entry in _entries(self.root)]
        parts = []
        for name in absent:
            parts.append(f"{_TITLES[name]} ({_LOOKED_FOR[name]}{_similar(name, entries)})")
        below = ", ".join(str(printable(place)) for place in _places(self.root)[1:])
        also = f" and {below}" if below else ""
        return f"{printable(self.root)}{also} lacks {', '.join(parts)}; see docs/data.md"

    def require(self, *names: str) -> None:
        """Refuse to continue without these."""
        sentence = self.missing(*names)
        if sentence is not None:
            raise FileNotFoundError(sentence)


def find_datasets(root: str | Path) -> PaperData:
    """What of the paper's data lies in `root`; it reads names only, no images."""
    folder = Path(root)
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        siblings = [entry.name for entry in _entries(folder.parent) if entry.is_dir()]
        raise FileNotFoundError(
            f"--data: {printable(folder)} {kind}{nearest(folder.name, siblings)}; give the folder "
            "that holds the data sets"
        )
    # A config with these paths is the same wherever the user stood.
    folder = folder.resolve()
    training = _find_training(folder)
    return PaperData(folder, training, _find_sets(folder, training), _find_protocols(folder))


def _find_training(root: Path) -> dict[str, TrainingData]:
    found: dict[str, TrainingData] = {}
    for place in _places(root):
        for entry in _entries(place):
            key = _key_of(entry)
            images = None if key is None else _images_at(entry)
            if key is None or images is None:
                continue
            # A .rec is read faster than a folder of millions of files.
            if key not in found or (images.source, found[key].source) == ("recordio", "folder"):
                found[key] = images
    return found


def _key_of(entry: Path) -> str | None:
    name = _plain(entry.stem if entry.is_file() else entry.name)
    return next((key for key, names in _NAMES.items() if name in names), None)


def _images_at(entry: Path) -> TrainingData | None:
    """The images of a folder or a .rec file, whatever form they have."""
    form, place = form_of(entry)
    if form is not None or entry.is_file():
        return None if form is None else TrainingData(form, place)
    for folder in (entry / "train", entry):  # VGGFace2 is handed around as train/ and test/
        if folder.is_dir() and any(inner.is_dir() for inner in _entries(folder)):
            return TrainingData("folder", folder)
    return None


def _find_sets(root: Path, training: Mapping[str, TrainingData]) -> dict[str, Path]:
    # InsightFace ships them in the folder of train.rec.
    beside = [data.path.parent for data in training.values() if data.source == "recordio"]
    found: dict[str, Path] = {}
    for place in [*_places(root), *beside]:
        for entry in _entries(place):
            name = entry.stem.lower().replace("-", "_")
            name = "agedb_30" if name in ("agedb", "agedb30") else name.replace("_lfw", "lfw")
            if entry.suffix.lower() == ".bin" and entry.is_file() and name in PAIR_SET_TITLES:
                found.setdefault(name, entry)
    return {name: found[name] for name in PAIR_SET_TITLES if name in found}


def _find_protocols(root: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    depths = ("", "*/", "*/*/")
    for name, prefix in (("ijb-b", "ijbb"), ("ijb-c", "ijbc")):
        lists = [p for d in depths for p in sorted(root.glob(f"{d}meta/{prefix}_face_tid_mid.txt"))]
        if lists:
            found[name] = lists[0].parent.parent
    templates = [p for depth in depths for p in sorted(root.glob(f"{depth}templatelists"))]
    if templates:
        found["megaface"] = templates[0].parent
    return found


def _places(root: Path) -> list[Path]:
    return [place for place in (root, root / "train", root / "val") if place.is_dir()]


def _entries(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _plain(name: str) -> str:
    """A name without what differs between copies: case, marks between words, the crop's size."""
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    return letters.removesuffix("112x112").removesuffix("112")


def _similar(name: str, entries: Iterable[str]) -> str:
    """A hint at an entry of the folder that may be meant."""
    by_plain = {_plain(Path(entry).stem): entry for entry in entries}
    for word in _NAMES.get(name, (_plain(name),)):
        found = near(word, by_plain)
        if found:
            return f"; is it '{printable(by_plain[found[0]])}'?"
    return ""


def _flow(**values: object) -> str:
    """A mapping in one line of YAML."""
    # JSON's quotes are YAML's: a path may hold colons, hashes and brackets.
    text = {name: json.dumps(str(value), ensure_ascii=False) for name, value in values.items()}
    return "{" + ", ".join(f"{name}: {value}" for name, value in text.items()) + "}"
