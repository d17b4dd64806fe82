"""Pairs: what verification is measured on, by name. One line adds a format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sphereface2.data.pairs.bin_set import BIN
from sphereface2.data.pairs.drawn import DRAWN
from sphereface2.data.pairs.pair_list import LFW, PAIR_LIST, MissingFilesError
from sphereface2.data.pairs.synthetic import SYNTHETIC
from sphereface2.data.pairs.verification_set import Missing, NamedPairs, PairFormat, VerificationSet
from sphereface2.registry import build, look_up, nearest, option_names

VERIFICATION_SETS: dict[str, PairFormat] = {
    "bin": BIN,
    "drawn": DRAWN,
    "lfw": LFW,
    "pairs": PAIR_LIST,
    "synthetic": SYNTHETIC,
}


def sets_of_word(
    word: str,
    *,
    root: str | None = None,
    others: Sequence[str] = (),
    missing: Missing | None = None,
) -> list[VerificationSet]:
    """The sets that `word` means: a .bin file, a list of pairs (LFW's or ours), or `synthetic`.

    Of people in a folder, .rec or .parquet pairs are drawn. `root` is the folder that the images
    of a list of pairs lie below. `others` are further names that would have been understood.
    `missing` says what becomes of images that are not there, where the set does not say it.
    """
    kind, options = _choice_of_word(word, others)
    if is_pair_list(Path(word)):
        options["root"] = root
    return _built("set", kind, options, missing, root="--root DIR", skip="--missing skip")


def set_choice(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind and the options of a set that a config names, by its kind or by a word as above."""
    if name in VERIFICATION_SETS or not (Path(name).exists() or {".", "/"} & set(name)):
        look_up("evaluation set", VERIFICATION_SETS, name)
        return name, dict(options)
    kind, found = _choice_of_word(name)
    return kind, {**found, **options}


def sets_of_choice(
    name: str, options: Mapping[str, Any], *, key: str = "", missing: Missing | None = None
) -> list[VerificationSet]:
    """The sets that one entry of a config means; `missing` as above.

    key: the entry's, where a message may say to change it
    """
    kind, more = set_choice(name, options)
    root = f"{key}.root=DIR" if key else "root in its config"
    skip = f"{key}.missing=skip" if key else "--missing skip"
    return _built("evaluation set", kind, more, missing, root=root, skip=skip)


def require_lists_for_root(words: Sequence[str], root: Path | str | None) -> None:
    """Refuse a --root that is not there, or that none of the sets would use."""
    if root is None:
        return
    if not Path(root).is_dir():
        raise FileNotFoundError(f"--root: there is no folder {root}")
    if words and not any(is_pair_list(Path(word)) for word in words):
        raise ValueError(
            f"--root is for the images of a list of pairs, and {words[0]} is not one; leave it out"
        )


def is_pair_list(path: Path) -> bool:
    """Whether a word is a list of pairs, whose images lie elsewhere."""
    return path.is_file() and VERIFICATION_SETS[format_of(path)].read is not None


def named_pairs(path: Path) -> NamedPairs:
    """The pairs of a list by the names of its images, which need not be there."""
    read = VERIFICATION_SETS[format_of(path)].read
    assert read is not None
    return read(path)


def format_of(path: Path) -> str:
    """The format of a file or folder; what no other takes for its own is read as a pair list."""
    return recognised_format(path) or "pairs"


def recognised_format(path: Path) -> str | None:
    """The first format that takes a file or folder for its own."""
    formats = VERIFICATION_SETS.items()
    return next((name for name, each in formats if each.sniff and each.sniff(path)), None)


def _built(
    what: str, kind: str, options: dict[str, Any], missing: Missing | None, *, root: str, skip: str
) -> list[VerificationSet]:
    """Sets by their kind; root, skip: what helps where images are missing, as users write it."""
    if missing is not None and "missing" in option_names(VERIFICATION_SETS[kind]):
        options["missing"] = missing
    try:
        found = build(what, VERIFICATION_SETS, kind, **options)
    except MissingFilesError as error:
        raise FileNotFoundError(error.advising(root=root, skip=skip)) from None
    return found if missing is None else [replace(each, missing=missing) for each in found]


def is_without_file(word: str) -> bool:
    """Whether a word names sets that are in no file, such as the synthetic ones."""
    return word in _without_file() and not Path(word).exists()


def _without_file() -> list[str]:
    return [name for name, each in VERIFICATION_SETS.items() if each.sniff is None]


def _choice_of_word(word: str, others: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    if Path(word).exists():
        return format_of(Path(word)), {"path": word}
    if is_without_file(word):
        return word, {}
    known = [*_without_file(), *others]
    raise FileNotFoundError(
        f"there is no verification set '{word}'{nearest(word, known)} (give a .bin file, a list of "
        f"pairs, a folder of people, or one of {', '.join(known)})"
    )
