"""Image files: headers against OpenCV's own reading, kinds of pixels, and what is refused."""

import os
import struct
import zlib
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from sphereface2.data.sources import image_file
from sphereface2.data.sources.image_file import (
    ImageHeader,
    check_header,
    decode,
    ending_of,
    is_image_file,
    read_image,
    start_of,
)
from sphereface2.files import printable

FORMATS = {".jpg": "jpeg", ".png": "png", ".bmp": "bmp", ".webp": "webp", ".tif": "tiff"}


def picture(height: int = 20, width: int = 30, *, channels: int = 3) -> NDArray[np.uint8]:
    """A smooth gradient, so that JPEG keeps it nearly as it is."""
    y, x = np.mgrid[:height, :width]
    return np.stack([(3 * x + (40 * c) * (y > 9)) % 256 for c in range(channels)], 2).astype(
        np.uint8
    )


def encode(
    image: NDArray[np.uint8] | NDArray[np.uint16], suffix: str = ".jpg", *options: int
) -> bytes:
    return cv2.imencode(suffix, image, list(options))[1].tobytes()


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """A small file that claims to be an image of any size: all its rows are zeros."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    rows = b"".join(packer.compress(row) for _ in range(min(height, 100))) + packer.flush()
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("size", [(20, 30), (8, 300), (257, 8)])
def test_the_header_says_what_decoding_gives(suffix: str, size: tuple[int, int]) -> None:
    encoded = encode(picture(*size), suffix)
    header = check_header(encoded)
    assert header == ImageHeader(FORMATS[suffix], width=size[1], height=size[0])
    assert check_header(memoryview(encoded)) == header
    assert ending_of(encoded) == suffix
    assert decode(encoded, "it").shape == (*size, 3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"progressive": True, "quality": 95}),
        ("JPEG", {"comment": b"\xff\xd9 no end", "restart_marker_blocks": 1}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}),  # the extended form, VP8X
        ("PNG", {"optimize": True}),
        ("GIF", {"interlace": True}),
        ("GIF", {"comment": b"an extension before the picture"}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "jpeg"}),
        ("TIFF", {"tiffinfo": {278: 7}}),  # seven rows a strip
    ],
)
def test_variants_of_the_formats(kind: str, options: dict[str, object]) -> None:
    encoded = saved(Image.fromarray(picture(40, 24)), kind, **options)
    assert check_header(encoded) == ImageHeader(kind.lower(), width=24, height=40)
    assert decode(encoded, "it").shape == (40, 24, 3)


def test_a_bitmap_of_rows_from_top_to_bottom_and_one_of_os2() -> None:
    pixels = bytes(24 * 10)
    plain = struct.pack("<2sIIIIiiHHIIiiII", b"BM", 54, 0, 54, 40, 8, -10, 1, 24, 0, 0, 0, 0, 0, 0)
    assert check_header(plain + pixels) == ImageHeader("bmp", width=8, height=10)
    old = struct.pack("<2sIIIIHHHH", b"BM", 26, 0, 26, 12, 8, 10, 1, 24)
    assert check_header(old + pixels) == ImageHeader("bmp", width=8, height=10)
    with pytest.raises(ValueError, match=r"cut short"):
        check_header(old + pixels[:-1])


@pytest.mark.parametrize("suffix", FORMATS)
def test_colours_are_red_green_blue(suffix: str) -> None:
    red = np.full((16, 16, 3), (20, 10, 200), np.uint8)  # as OpenCV has them: blue first
    image = decode(encode(red, suffix), "it")
    assert np.abs(image.astype(int) - (200, 10, 20)).max() <= 8
    assert image.dtype == np.uint8


def test_every_kind_of_pixels_becomes_eight_bit_rgb() -> None:
    rgb = np.full((16, 16, 3), (200, 10, 20), np.uint8)
    colour = Image.fromarray(rgb)
    deep = rgb[:, :, ::-1].astype(np.uint16) * 257
    grey = np.full((16, 16), 77, np.uint8)
    cases = {
        "16 bit": (encode(deep, ".png"), (200, 10, 20)),
        "16 bit grey": (encode(grey.astype(np.uint16) * 257, ".png"), (77, 77, 77)),
        "CMYK": (saved(colour.convert("CMYK"), "JPEG", quality=95), (200, 10, 20)),
        "grey JPEG": (encode(grey), (77, 77, 77)),
        "grey PNG": (encode(grey, ".png"), (77, 77, 77)),
        "palette": (saved(colour.convert("P", palette=Image.Palette.ADAPTIVE), "PNG"), None),
        "palette BMP": (saved(colour.convert("P", palette=Image.Palette.ADAPTIVE), "BMP"), None),
        "one bit": (saved(Image.fromarray(grey > 0), "PNG"), (255, 255, 255)),
        "transparent": (encode(np.dstack([rgb[:, :, ::-1], grey]), ".png"), (200, 10, 20)),
        "transparent WebP": (saved(colour.convert("RGBA"), "WEBP", lossless=True), (200, 10, 20)),
    }
    for name, (encoded, expected) in cases.items():
        image = decode(encoded, name)
        assert image.dtype == np.uint8, name
        assert image.shape == (16, 16, 3), name
        difference = np.abs(image.astype(int) - (expected or (200, 10, 20)))
        assert difference.max() <= 4, (name, image[0, 0])


def test_an_image_is_turned_as_its_exif_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    encoded = saved(Image.fromarray(picture(20, 30)), "JPEG", exif=exif)
    assert check_header(encoded) == ImageHeader("jpeg", width=30, height=20)
    assert decode(encoded, "it").shape == (30, 20, 3)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_that_is_cut_short_is_refused_at_any_length(suffix: str) -> None:
    encoded = encode(picture(), suffix)
    for length in [*range(17, 60), len(encoded) // 2, len(encoded) - 1]:
        with pytest.raises(ValueError, match=r"cut short|damaged"):
            check_header(encoded[:length])


def test_of_a_moving_gif_the_first_picture_is_read() -> None:
    first, second = (Image.new("RGB", (30, 20), colour) for colour in ("red", "blue"))
    encoded = saved(first, "GIF", save_all=True, append_images=[second])
    assert check_header(encoded) == ImageHeader("gif", width=30, height=20)
    assert decode(encoded, "it")[5, 5].tolist() == [255, 0, 0]
    for length in [*range(17, 60), len(encoded) // 3]:
        with pytest.raises(ValueError, match="cut short"):
            check_header(encoded[:length])


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_tiff_of_either_byte_order_is_measured_and_bounded(order: str) -> None:
    entries = [(256, 3, 1, 16), (257, 4, 1, 9), (273, 4, 1, 8), (279, 4, 1, 50)]

    def tiff(pixels: int) -> bytes:
        mark = {"<": b"II*\0", ">": b"MM\0*"}[order]
        directory = struct.pack(f"{order}H", len(entries))
        for tag, kind, count, value in entries:
            short = struct.pack(f"{order}HH", value, 0)
            number = short if kind == 3 else struct.pack(f"{order}I", value)
            directory += struct.pack(f"{order}HHI", tag, kind, count) + number
        return mark + struct.pack(f"{order}I", 8 + pixels) + bytes(pixels) + directory

    assert check_header(tiff(50)) == ImageHeader("tiff", width=16, height=9)
    entries[3] = (279, 4, 1, 5000)
    with pytest.raises(ValueError, match="cut short"):
        check_header(tiff(50))
    entries[0] = (256, 4, 2**32 - 1, 8)  # as many widths as no file holds
    with pytest.raises(ValueError, match="cut short"):
        check_header(tiff(50))


def test_the_end_of_a_preview_is_not_that_of_the_image() -> None:
    preview = encode(picture(10, 10))
    encoded = encode(picture())
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(preview)) + preview
    with_preview = encoded[:2] + segment + encoded[2:]
    assert check_header(with_preview) == check_header(encoded)
    with pytest.raises(ValueError, match=r"cut short"):
        check_header(with_preview[: len(with_preview) - 30])


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_bytes_behind_the_end_do_no_harm(suffix: str) -> None:
    encoded = encode(picture(), suffix) + bytes(37)
    assert check_header(encoded).width == 30
    assert decode(encoded, "it").shape == (20, 30, 3)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"dear diary", "it is not a JPEG, PNG, BMP, WebP, GIF or TIFF file"),
        (b"\0\0\0\x18ftypmp42", "it is not a JPEG, PNG, BMP, WebP, GIF or TIFF file"),
        (b"GIF89a" + bytes(30), "its GIF blocks are damaged"),
        (b"II*\0\x08\0\0\0" + bytes(30), "its TIFF header is damaged"),
        (
            b"\0\0\0\x18ftypheic",
            "it is of the kind HEIC, which is not read; convert it to JPEG or PNG",
        ),
        (b"\xff\xd8\xff\xe0 cut short", "it is cut short"),
        (b"\xff\xd8\xff\xe0\0\x04xxnot a segment here", "its JPEG segments are damaged"),
        (encode(picture(1, 1), ".png"), "it has 1 × 1 pixels, fewer than 8 a side"),
        (encode(picture(100, 7)), "it has 7 × 100 pixels, fewer than 8 a side"),
    ],
)
def test_what_is_not_an_image_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        check_header(content)
    assert str(error.value) == reason
    with pytest.raises(ValueError, match=r".") as error:
        decode(content, "a/b.jpg")
    assert str(error.value) == f"cannot decode the image a/b.jpg: {reason}; replace or remove it"


def test_a_huge_image_is_never_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = png_of_size(30_000, 30_000)
    assert len(encoded) < 10_000

    def never(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(cv2, "imdecode", never)
    with pytest.raises(ValueError, match=r"30000 × 30000 pixels, more than 100 million; replace"):
        decode(encoded, "huge.png")
    assert check_header(png_of_size(10_000, 10_000)).width == 10_000  # as large as allowed


def test_a_file_with_a_good_header_and_bad_content_is_refused() -> None:
    encoded = bytearray(encode(picture(), ".png"))
    encoded[45:60] = bytes(15)
    with pytest.raises(ValueError, match=r"image x: its content is damaged; replace or remove it"):
        decode(bytes(encoded), "x")


def test_names_that_are_not_utf8_can_be_read_and_printed(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    path.write_bytes(encode(picture(), ".png"))
    assert read_image(path).shape == (20, 30, 3)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"caf\\xe9\.png: it is empty") as error:
        read_image(path)
    str(error.value).encode("utf-8")
    assert printable("zoë/1.png") == "zoë/1.png"


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no image .*none.png"):
        read_image(tmp_path / "none.png")
    with pytest.raises(ValueError, match=r"cannot open the image .*: Is a directory"):
        read_image(tmp_path)


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.jpg"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"x\.jpg: it is a FIFO or a device, not a regular file"):
        read_image(path)
    assert start_of(path) == b""


def test_which_names_are_images() -> None:
    for name in ("a.jpg", "b.JPEG", "c.Png", "d.bmp", "e.webp", "f.jfif", "g.gif", "h.TIF"):
        assert is_image_file(name)
    for name in ("a.heic", "c.txt", "jpg", ".hidden.jpg"):
        assert not is_image_file(name)
    assert image_file.MIN_SIDE == 8
