"""A verification set by one word, on the command line or in a config: a file, or a made-up set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sphereface2.data.pairs import VERIFICATION_SETS
from sphereface2.data.pairs.pair_list import MissingFilesError, line_fields, text_lines
from sphereface2.data.pairs.verification_set import Missing, VerificationSet
from sphereface2.registry import build, look_up, nearest, option_names

_PEOPLE = (".rec", ".idx", ".parquet")


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
    try:
        return _built("set", kind, options, missing)
    except MissingFilesError as error:
        said = error.advising(root="--root DIR", skip="--missing skip")
        raise FileNotFoundError(said) from None


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
    try:
        return _built("evaluation set", kind, more, missing)
    except MissingFilesError as error:
        root, skip = (
            (f"{key}.root=DIR", f"{key}.missing=skip")
            if key
            else ("root in its config", "--missing skip")
        )
        raise FileNotFoundError(error.advising(root=root, skip=skip)) from None


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
    """Whether a word is a text file of pairs, whose images lie elsewhere."""
    return path.is_file() and path.suffix != ".bin" and not has_people(path)


def has_people(path: Path) -> bool:
    """Whether labelled images are there, of which pairs can be drawn."""
    return path.is_dir() or (path.is_file() and path.suffix.lower() in _PEOPLE)


def _built(
    what: str, kind: str, options: dict[str, Any], missing: Missing | None
) -> list[VerificationSet]:
    if missing is None:
        return build(what, VERIFICATION_SETS, kind, **options)
    if "missing" in option_names(VERIFICATION_SETS[kind]):
        options["missing"] = missing
    return [
        replace(each, missing=missing) for each in build(what, VERIFICATION_SETS, kind, **options)
    ]


def _choice_of_word(word: str, others: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    path = Path(word)
    if has_people(path):
        return "drawn", {"path": word}
    if path.is_file():
        kind = "bin" if path.suffix == ".bin" else "lfw" if _is_lfw_list(path) else "pairs"
        return kind, {"path": word}
    alone = [name for name, factory in VERIFICATION_SETS.items() if not _needs_path(factory)]
    if word in alone:
        return word, {}
    known = [*alone, *others]
    raise FileNotFoundError(
        f"there is no verification set '{word}'{nearest(word, known)} (give a .bin file, a list of "
        f"pairs, a folder of people, or one of {', '.join(known)})"
    )


def _needs_path(factory: Any) -> bool:
    return "path" in option_names(factory)


def _is_lfw_list(path: Path) -> bool:
    """LFW's lines are `name 1 4` and `name 1 name2 3`, ours `path1 path2 0|1`."""
    lines = (line_fields(line) for line in text_lines(path, "pair list"))
    said = [fields for fields in lines if any(fields) and not fields[0].startswith("#")]
    if not said:
        return False
    header, first = said[0], said[min(1, len(said) - 1)]
    if len(header) <= 2 and all(field.isdigit() for field in header):
        return True
    return len(first) == 4 or (len(first) == 3 and first[1].isdigit())
