"""Verification sets by one word: which format a file has, and its pairs with and without images."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.pairs import (
    VERIFICATION_SETS,
    format_of,
    is_pair_list,
    named_pairs,
    recognised_format,
    sets_of_choice,
    sets_of_word,
)
from sphereface2.data.pairs.pair_list import first_lines, lfw_pairs, pair_list, set_of_list
from sphereface2.data.pairs.verification_set import (
    ImageFiles,
    NamedPairs,
    PairFormat,
    VerificationSet,
    ten_folds,
    without_ending,
)
from sphereface2.datatools.convert import convert, looks_like_pairs
from sphereface2.evaluation.scoring import Subject, find_sets, notes_on_saved, score_saved
from sphereface2.registry import DataPath


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("10 300\nAnn 1 2\nAnn 1 Bob 1\n", "lfw"),
        ("300\nAnn\t1\t2\n", "lfw"),
        ("Ann 1 2\nAnn 1 Bob 1\n", "lfw"),
        ("# mine\nAnn 1 Bob 1\n", "lfw"),
        ("10 300\nAnn one 2\n", "lfw"),  # whose parser names the line
        ("# mine\na/1.png a/2.png 1\na/1.png b/1.png 0\n", "pairs"),
        ("a/1.png a/2.png 1\n", "pairs"),
        ("a b.png\tc.png\t0\r\n", "pairs"),
        ("my photo.jpg 1\n", None),  # lists of images
        ("a.png 1 1\n", None),
        ("1 7\n2 7\n", None),
        ("a/1 a/2 1\n", None),
        ("", None),
        ("Ann 1 2\n\0", None),
    ],
)
def test_lists_are_recognised_by_their_first_lines(
    text: str, kind: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(text)
    assert recognised_format(path) == kind
    assert format_of(path) == (kind or "pairs")
    assert is_pair_list(path)
    assert looks_like_pairs(path) == (kind is not None)


def test_files_and_folders_are_recognised(tmp_path: Path) -> None:
    kinds = {"lfw.bin": "bin", "LFW.BIN": "bin", "train.rec": "drawn", "train.parquet": "drawn"}
    for name, kind in kinds.items():
        (tmp_path / name).write_bytes(b"x")
        assert format_of(tmp_path / name) == kind
        assert not is_pair_list(tmp_path / name)
    assert format_of(tmp_path) == "drawn"
    assert not looks_like_pairs(tmp_path / "train.rec")
    assert looks_like_pairs(tmp_path / "lfw.bin")


def sides(path: Path) -> NamedPairs:
    """A format of its own: after a line `sides`, `+ PERSON` (two of one), `- PERSON PERSON`."""
    lines = [line.split() for line in path.read_text().splitlines()[1:]]
    named = [(f"{w[1]}/left", f"{w[-1]}/right") for w in lines]
    images = sorted({image for pair in named for image in pair})
    same = np.array([w[0] == "+" for w in lines])
    pairs = np.array([[images.index(image) for image in pair] for pair in named])
    return NamedPairs(path.stem, images, pairs, same, ten_folds(same, path))


def sides_set(
    *, path: DataPath, root: DataPath | None = None, title: str | None = None
) -> list[VerificationSet]:
    """Left and right pictures of people."""
    return set_of_list(
        sides,
        path,
        root=root,
        title=title,
        missing="error",
        files_of=lambda names, folder: [folder / f"{name}.png" for name in names],
    )


def test_a_new_format_is_one_file_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_sides(path: Path) -> bool:
        return first_lines(path, 1) == [["sides"]]

    added = PairFormat(sides_set, sniff=is_sides, read=sides)
    monkeypatch.setitem(VERIFICATION_SETS, "sides", added)
    rng = np.random.default_rng(0)
    for person in range(11):
        for side in ("left", "right"):
            picture = rng.integers(0, 255, (8, 8, 3), np.uint8)
            (tmp_path / f"faces/p{person}").mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(tmp_path / f"faces/p{person}/{side}.png"), picture)
    lines = [f"+ p{n}\n- p{n} p{n + 1}" for n in range(10)]
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(["sides", *lines]))
    root = str(tmp_path / "faces")
    # by a config: with its name and options, or by the path alone
    for name, options in (("sides", {"path": str(path)}), (str(path), {})):
        (found,) = sets_of_choice(name, {**options, "root": root, "title": "both"})
        assert found.name == "both"
        assert len(found.images) == 21  # nobody asks for the left side of the last
        with pytest.raises(ValueError, match="no option 'rooot'; did you mean 'root'"):
            sets_of_choice(name, {**options, "rooot": root})
    # --on WORD
    (by_word,) = find_sets([str(path)], root=Path(root))
    assert by_word.same.tolist() == [True, False] * 10
    with pytest.raises(FileNotFoundError, match=r"21 of the 21 images .* with --root DIR, or"):
        find_sets([str(path)])
    # saved embeddings, for which the images need not be there
    vectors = rng.normal(size=(22, 4)).astype(np.float32)
    np.save(tmp_path / "saved.npy", vectors)
    names = [f"p{person}/{side}.png" for person in range(11) for side in ("left", "right")]
    (tmp_path / "saved.txt").write_text("\n".join(names))
    subject = Subject(None, tmp_path / "saved.npy", tmp_path / "out")
    (scored,) = score_saved(subject, [str(path)])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = [unit[2 * n] @ unit[2 * n + d] for n in range(10) for d in (1, 3)]
    np.testing.assert_allclose(scored.scores, expected, rtol=1e-5, atol=1e-6)
    # convert, and the checks of the pairs
    done = convert(path, tmp_path / "mine.bin", root=Path(root))
    assert done.pairs == 20
    path.write_text("\n".join(["sides", *lines, "+ p0", "- p0 p0"]))
    assert any("one person and two" in note for note in notes_on_saved([str(path)]))


def test_an_unknown_word_says_what_it_may_be() -> None:
    with pytest.raises(FileNotFoundError, match="no verification set 'synthetc'; did you mean"):
        sets_of_word("synthetc")


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.zeros((8, 8, 3), np.uint8))


def names_of(found: VerificationSet, root: Path) -> list[tuple[str, str]]:
    assert isinstance(found.images, ImageFiles)
    names = [path.relative_to(root).as_posix() for path in found.images.paths]
    return [(names[left], names[right]) for left, right in found.pairs.tolist()]


@pytest.mark.parametrize("header", ["2 10\n", "20\n", ""])
def test_lfw_as_with_images(tmp_path: Path, header: str) -> None:
    lines = []
    for fold in range(2):
        lines += [f"p{fold}{number}\t1\t2" for number in range(10)]
        lines += [f"p{fold}{number}\t1\tq{fold}{number}\t3" for number in range(10)]
        for number in range(10):
            for name, which in ((f"p{fold}{number}", (1, 2)), (f"q{fold}{number}", (3,))):
                for each in which:
                    image(tmp_path / name / f"{name}_{each:04d}.jpg")
    (tmp_path / "pairs.txt").write_text(header + "\n".join(lines) + "\n")
    (expected,) = lfw_pairs(path=str(tmp_path / "pairs.txt"))
    found = named_pairs(tmp_path / "pairs.txt")
    named = [(found.images[a], found.images[b]) for a, b in found.pairs.tolist()]
    with_images = names_of(expected, tmp_path)
    assert named == [(without_ending(a), without_ending(b)) for a, b in with_images]
    np.testing.assert_array_equal(found.same, expected.same)
    np.testing.assert_array_equal(found.folds, expected.folds)


def test_a_plain_list_as_with_images(tmp_path: Path) -> None:
    lines = ["# path path same"]
    for number in range(10):
        for name in (f"a b/{number}.png", f"c/{number}.png"):
            image(tmp_path / name)
        lines += [f"a b/{number}.png\tc/{number}.png\t1", f"c/{number}.png\ta b/0.png\t0"]
    (tmp_path / "mine.txt").write_text("\n".join(lines) + "\n")
    (expected,) = pair_list(path=str(tmp_path / "mine.txt"))
    found = named_pairs(tmp_path / "mine.txt")
    named = [(found.images[a], found.images[b]) for a, b in found.pairs.tolist()]
    assert named == names_of(expected, tmp_path)
    np.testing.assert_array_equal(found.folds, expected.folds)
