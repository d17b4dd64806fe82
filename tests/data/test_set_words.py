"""Verification sets by one word: which kind of file it is, and what is said if it is none."""

from pathlib import Path

import pytest

from sphereface2.data.pairs import by_word as set_words


@pytest.mark.parametrize(
    ("text", "is_lfw"),
    [
        ("10 300\nAnn 1 2\nAnn 1 Bob 1\n", True),
        ("300\nAnn\t1\t2\n", True),
        ("Ann 1 2\nAnn 1 Bob 1\n", True),
        ("# mine\na/1.png a/2.png 1\na/1.png b/1.png 0\n", False),
        ("a/1.png a/2.png 1\n", False),
        ("", False),
    ],
)
def test_lists_are_told_apart_by_their_lines(text: str, is_lfw: bool, tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text(text)
    assert set_words._is_lfw_list(tmp_path / "pairs.txt") == is_lfw


def test_a_file_becomes_the_set_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str | None]] = []

    def bin_set(*, path: str) -> list[object]:
        asked.append(("bin", path, None))
        return []

    def lfw(*, path: str, root: str | None = None) -> list[object]:
        asked.append(("lfw", path, root))
        return []

    def pairs(*, path: str, root: str | None = None) -> list[object]:
        asked.append(("pairs", path, root))
        return []

    def drawn(*, path: str) -> list[object]:
        asked.append(("drawn", path, None))
        return []

    def synthetic(*, people: int = 200) -> list[object]:
        asked.append(("synthetic", "", None))
        return []

    table: dict[str, object] = {"bin": bin_set, "lfw": lfw, "pairs": pairs, "drawn": drawn}
    table["synthetic"] = synthetic
    monkeypatch.setattr(set_words, "VERIFICATION_SETS", table)
    (tmp_path / "lfw.bin").write_bytes(b"x")
    (tmp_path / "pairs.txt").write_text("10 300\nAnn 1 2\n")
    (tmp_path / "mine.txt").write_text("a.png b.png 0\n")
    for word in ("lfw.bin", "pairs.txt", "mine.txt"):
        set_words.sets_of_word(str(tmp_path / word), root="faces")
    set_words.sets_of_word("synthetic")
    set_words.sets_of_word(str(tmp_path))
    assert asked == [
        ("bin", str(tmp_path / "lfw.bin"), None),
        ("lfw", str(tmp_path / "pairs.txt"), "faces"),
        ("pairs", str(tmp_path / "mine.txt"), "faces"),
        ("synthetic", "", None),
        ("drawn", str(tmp_path), None),
    ]


def test_an_unknown_word_says_what_it_may_be() -> None:
    with pytest.raises(FileNotFoundError, match="no verification set 'synthetc'; did you mean"):
        set_words.sets_of_word("synthetc")
