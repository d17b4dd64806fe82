"""A verification set by one word on the command line: a file, or the name of a made-up set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sphereface2.data import VERIFICATION_SETS
from sphereface2.data.pair_list import line_fields, text_lines
from sphereface2.data.verification_sets import VerificationSet
from sphereface2.tables import build, nearest, option_names

_PEOPLE = (".rec", ".idx", ".parquet")


def sets_of_word(
    word: str, *, root: str | None = None, others: Sequence[str] = ()
) -> list[VerificationSet]:
    """The sets that `word` means: a .bin file, a list of pairs (LFW's or ours), or `synthetic`.

    Of people in a folder, .rec or .parquet pairs are drawn. `root` is the folder that the images
    of a list of pairs lie below. `others` are further names that would have been understood.
    """
    path = Path(word)
    if has_people(path):
        return build("set", VERIFICATION_SETS, "drawn", path=word)
    if not path.is_file():
        return _named(word, others)
    if path.suffix == ".bin":
        return build("set", VERIFICATION_SETS, "bin", path=word)
    kind = "lfw" if _is_lfw_list(path) else "pairs"
    return build("set", VERIFICATION_SETS, kind, path=word, root=root)


def has_people(path: Path) -> bool:
    """Whether labelled images are there, of which pairs can be drawn."""
    return path.is_dir() or (path.is_file() and path.suffix.lower() in _PEOPLE)


def _named(word: str, others: Sequence[str]) -> list[VerificationSet]:
    alone = [name for name, factory in VERIFICATION_SETS.items() if not _needs_path(factory)]
    if word in alone:
        return build("set", VERIFICATION_SETS, word)
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
