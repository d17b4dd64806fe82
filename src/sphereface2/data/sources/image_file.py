"""Image files: which are images, what their headers say, and how one becomes an RGB array."""

from __future__ import annotations

import errno
import os
import stat
import struct
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.files import printable
from sphereface2.workers import install_command

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".bmp", ".webp", ".jfif", ".jpe", ".tif", ".tiff", ".gif"
)  # fmt: skip

MIN_SIDE = 8
"""Pixels: a smaller picture shows no face."""
MAX_PIXELS = 100_000_000
"""A larger picture is never decoded: 30,000 × 30,000 pixels would take 2.7 GB."""

Encoded = bytes | memoryview
"""The bytes of an image file."""

_SUFFIX_OF = {
    "jpeg": ".jpg", "png": ".png", "bmp": ".bmp", "webp": ".webp", "gif": ".gif", "tiff": ".tif"
}  # fmt: skip
READ_KINDS = frozenset(_SUFFIX_OF)
_STARTS = {
    b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png", b"BM": "bmp", b"GIF87a": "gif",
    b"GIF89a": "gif", b"II*\0": "tiff", b"MM\0*": "tiff",
}  # fmt: skip
_BRANDS = {"heic": "HEIC", "heix": "HEIC", "mif1": "HEIC", "msf1": "HEIC", "avif": "AVIF"}
_CUT_SHORT = "it is cut short"

# JPEG: 0xFF, a marker, the length of the segment; in a start of frame also height and width.
_SEGMENT = struct.Struct(">BBHxHH")
_STARTS_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA


class TooManyPixelsError(ValueError):
    """A picture is too large to be decoded."""


class UnreadableImageError(ValueError):
    """A file is not an image, or a damaged one."""


@dataclass(frozen=True)
class ImageHeader:
    """What an image file says about itself; the size is that before a turn by EXIF."""

    format: str
    """jpeg, png, bmp, webp, gif or tiff."""
    width: int
    height: int


def is_image_file(name: str) -> bool:
    """Whether a file of this name is taken for an image; hidden files never are."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def ending_of(encoded: Encoded) -> str:
    """The ending for the file of an image; that of JPEG for one that is damaged."""
    try:
        return _SUFFIX_OF[check_header(encoded).format]
    except ValueError:
        return ".jpg"


def kind_of(start: bytes) -> str | None:
    """The kind of image that begins so: one of `READ_KINDS`, another one, or None for no image."""
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "webp"
    if start[4:8] == b"ftyp":  # also that of videos
        return _BRANDS.get(start[8:12].decode("ascii", "replace"))
    return next((kind for signature, kind in _STARTS.items() if start.startswith(signature)), None)


def not_read(kind: str) -> str:
    """Why an image of a kind that is not among `READ_KINDS` cannot be used."""
    return f"it is of the kind {kind}, which is not read; convert it to JPEG or PNG"


def check_header(encoded: Encoded) -> ImageHeader:
    """Check the structure of an image file without decoding it; a ValueError says what is wrong.

    Checked are the format, the size, and that the end of the file is there.
    """
    size = len(encoded)
    if size == 0:
        raise ValueError("it is empty")
    kind = kind_of(bytes(encoded[:16]))
    if kind is None:
        raise ValueError("it is not a JPEG, PNG, BMP, WebP, GIF or TIFF file")
    if kind not in READ_KINDS:
        raise ValueError(not_read(kind))
    try:
        header = _LOOKS[kind](encoded)
    except struct.error:
        raise ValueError(_CUT_SHORT) from None
    _require_sides(header.width, header.height)
    return header


def _require_sides(width: int, height: int, most_pixels: int = MAX_PIXELS) -> None:
    if min(width, height) < MIN_SIDE:
        raise ValueError(f"it has {width} × {height} pixels, fewer than {MIN_SIDE} a side")
    if width * height > most_pixels:
        raise TooManyPixelsError(
            f"it has {width} × {height} pixels, more than {most_pixels / 1e6:g} million"
        )


def decode(encoded: Encoded, location: str, *, looked: bool = False) -> NDArray[np.uint8]:
    """An image as uint8 RGB of shape (height, width, 3), turned as its EXIF says.

    `location` names the image in the ValueError for one that cannot be decoded, whose cause is the
    bare reason. With `looked` the file has passed `look` before, which is then left out.
    """
    try:
        return to_pixels(encoded, looked=looked)
    except ValueError as error:
        sentence = f"cannot decode the image {location}: {error}; replace or remove it"
        raise UnreadableImageError(sentence) from error


def to_pixels(encoded: Encoded, *, looked: bool = False) -> NDArray[np.uint8]:
    """As `decode`, but the ValueError is the bare reason."""
    if not looked:
        check_header(encoded)
    image = to_array(encoded)
    if image is None:
        raise ValueError("its content is damaged")
    return image


def to_array(encoded: Encoded) -> NDArray[np.uint8] | None:
    """An image whose header is in order as uint8 RGB, or None if its content is damaged."""
    try:
        return cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)  # type: ignore[return-value]  # always uint8 with this flag
    except cv2.error:
        return None  # what other decoders give


def read_array(path: str) -> NDArray[np.uint8] | None:
    """As `to_array`, from a file that has passed `look`: one call, beside other threads."""
    try:
        path.encode()  # OpenCV does not survive a name that is not UTF-8
        return cv2.imread(path, cv2.IMREAD_COLOR_RGB)  # type: ignore[return-value]  # always uint8
    except (cv2.error, UnicodeEncodeError):
        return None


def read_file(path: Path | str) -> bytes:
    """The bytes of an image file, or an error with its name."""
    # Read first and decode then: cv2.imread gives None for a missing, unreadable or broken file
    # alike, and cannot open every path on every system.
    try:
        with _open(path) as file:
            return file.read()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no image {printable(path)}") from None
    except OSError as error:
        reason = f"cannot open the image {printable(path)}: {error.strerror}"
        raise ValueError(reason) from None


def start_of(path: Path | str) -> bytes:
    """The first bytes of a file; none where it cannot be read."""
    try:
        with _open(path) as file:
            return file.read(16)
    except OSError:
        return b""


def _open(path: Path | str) -> FileIO:
    """Open a regular file and nothing else: a FIFO waits for a writer, a device may never end."""
    file = open(path, "rb", buffering=0, opener=_without_waiting)  # noqa: SIM115 - given away
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is a FIFO or a device, not a regular file")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_image(path: Path | str) -> NDArray[np.uint8]:
    """The image in a file as uint8 RGB of shape (height, width, 3), turned as its EXIF says."""
    return decode(read_file(path), printable(path))


def read_photo(path: Path | str) -> NDArray[np.uint8]:
    """As `read_image`; also HEIC and AVIF, as telephones write them, where pillow-heif is there."""
    return decode_photo(read_file(path), printable(path))


def encode(image: NDArray[np.uint8], ending: str, *, quality: int | None = None) -> bytes:
    """An RGB picture as a file with this ending; quality: of JPEG."""
    setting = [] if quality is None else [cv2.IMWRITE_JPEG_QUALITY, quality]
    done, encoded = cv2.imencode(ending, cv2.cvtColor(image, cv2.COLOR_RGB2BGR), setting)
    assert done
    return encoded.tobytes()


def decode_photo(
    encoded: bytes, location: str, *, most_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """As `decode`; also HEIC and AVIF. A picture of more than `most_pixels` is never decoded."""
    kind = kind_of(encoded[:16])
    try:
        if kind is None or kind in READ_KINDS:
            header = check_header(encoded)
            _require_sides(header.width, header.height, most_pixels)
            return to_pixels(encoded, looked=True)
        return _decode_heif(encoded, most_pixels)
    except TooManyPixelsError as error:
        raise TooManyPixelsError(f"{location} is too large: {error}") from None
    except ImportError:
        reason = f"it is of the kind {kind}, which needs a package: {install_command('heic')}"
    except Exception as error:  # libheif's faults, of several kinds
        reason = " ".join(str(error).split()) or "its content is damaged"
    raise UnreadableImageError(
        f"cannot decode the image {location}: {reason}; replace or remove it"
    )


def _decode_heif(encoded: bytes, most_pixels: int) -> NDArray[np.uint8]:
    import pillow_heif

    # Opening reads the header alone; the pixels come upright, for HEIF has no other way.
    opened = pillow_heif.open_heif(encoded, convert_hdr_to_8bit=True)
    width, height = opened.size
    _require_sides(width, height, most_pixels)
    return np.asarray(opened.to_pillow().convert("RGB"))


# -- formats -------------------------------------------------------------------------------------


def _look_at_jpeg(encoded: Encoded) -> ImageHeader:
    """Walk the segments; the size is in a start-of-frame segment, before the first scan."""
    header = None
    place, marker = 2, 0
    while marker != _START_OF_SCAN:
        lead, marker, length, height, width = _SEGMENT.unpack_from(encoded, place)
        if lead != 0xFF:
            raise ValueError("its JPEG segments are damaged")
        if marker in _STARTS_OF_FRAME:
            header = ImageHeader("jpeg", width, height)
            if encoded[-2:] == b"\xff\xd9":
                return header
        place += 1 if marker == 0xFF else 2 + length  # 0xFF may be doubled to fill up
    # Within a scan 0xFF is followed by 0 or a restart mark, so 0xFFD9 there is the real end, with
    # something behind it. A preview within the EXIF data has an end, too, but comes before.
    if header is None or bytes(encoded[place:]).rfind(b"\xff\xd9") < 0:
        raise ValueError(_CUT_SHORT)
    return header


def _look_at_png(encoded: Encoded) -> ImageHeader:
    name, width, height = struct.unpack_from(">4sII", encoded, 12)
    if name != b"IHDR":
        raise ValueError("its PNG header is damaged")
    last = b"IEND\xaeB`\x82"
    if encoded[-8:] != last and bytes(encoded).rfind(last) < 0:
        raise ValueError(_CUT_SHORT)
    return ImageHeader("png", width, height)


def _look_at_bmp(encoded: Encoded) -> ImageHeader:
    pixels, header_size = struct.unpack_from("<II", encoded, 10)
    if header_size == 12:  # the header of OS/2
        width, height, _, bits = struct.unpack_from("<HHHH", encoded, 18)
        packed = 0
    else:
        width, height, _, bits, packed = struct.unpack_from("<iiHHI", encoded, 18)
        height = abs(height)  # negative where rows run from top to bottom
    # Rows are padded to four bytes; run-length coded files (1, 2) have no such length.
    if packed not in (1, 2) and pixels + (width * bits + 31) // 32 * 4 * height > len(encoded):
        raise ValueError(_CUT_SHORT)
    return ImageHeader("bmp", width, height)


def _look_at_webp(encoded: Encoded) -> ImageHeader:
    length, kind = struct.unpack_from("<I4x4s", encoded, 4)
    if kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", encoded, 26))
    elif kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", encoded, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8X":
        low_w, high_w, low_h, high_h = struct.unpack_from("<HBHB", encoded, 24)
        width, height = (high_w << 16 | low_w) + 1, (high_h << 16 | low_h) + 1
    else:
        raise ValueError("its WebP header is damaged")
    if length + 8 > len(encoded):
        raise ValueError(_CUT_SHORT)
    return ImageHeader("webp", width, height)


def _look_at_gif(encoded: Encoded) -> ImageHeader:
    """Walk the blocks to the end of the first picture, which is the one that is read."""
    width, height, flags = struct.unpack_from("<HHB", encoded, 6)
    place = 13 + _colour_table(flags)
    while True:
        (mark,) = struct.unpack_from("<B", encoded, place)
        if mark == 0x21:  # an extension: its kind, then blocks
            place = _after_blocks(encoded, place + 2)
        elif mark == 0x2C:  # a picture: place, size and flags, the size of its codes, then blocks
            (flags,) = struct.unpack_from("<B", encoded, place + 9)
            _after_blocks(encoded, place + 11 + _colour_table(flags))
            return ImageHeader("gif", width, height)
        else:
            raise ValueError("its GIF blocks are damaged")


def _colour_table(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(encoded: Encoded, place: int) -> int:
    length = -1
    while length:
        (length,) = struct.unpack_from("<B", encoded, place)
        place += 1 + length
    return place


_TIFF_TAGS = frozenset((256, 257, 273, 279, 324, 325))  # the sides; strips and tiles: place, size


def _look_at_tiff(encoded: Encoded) -> ImageHeader:
    """Read the first directory: the size, and where the strips or tiles of the picture end."""
    order = "<" if bytes(encoded[:2]) == b"II" else ">"
    (directory,) = struct.unpack_from(f"{order}I", encoded, 4)
    (count,) = struct.unpack_from(f"{order}H", encoded, directory)
    tags: dict[int, tuple[int, ...]] = {}
    for entry in range(directory + 2, directory + 2 + 12 * count, 12):
        tag, kind, number = struct.unpack_from(f"{order}HHI", encoded, entry)
        if kind not in (3, 4):  # whole numbers of 2 or 4 bytes, here or elsewhere
            continue
        place, length = entry + 8, number * 2 * (kind - 2)
        if length > 4:
            (place,) = struct.unpack_from(f"{order}I", encoded, place)
        if place + length > len(encoded):
            raise ValueError(_CUT_SHORT)
        # No others are kept: of thousands of tags each could claim the whole file as its numbers.
        if tag in _TIFF_TAGS:
            tags[tag] = struct.unpack_from(f"{order}{number}{'HI'[kind - 3]}", encoded, place)
    try:
        (width,), (height,) = tags[256], tags[257]
        starts = tags.get(273) or tags[324]
        sizes = tags.get(279) or tags[325]
        end = max(start + size for start, size in zip(starts, sizes, strict=False))
    except (KeyError, ValueError):
        raise ValueError("its TIFF header is damaged") from None
    if end > len(encoded):
        raise ValueError(_CUT_SHORT)
    return ImageHeader("tiff", width, height)


_LOOKS = {
    "jpeg": _look_at_jpeg,
    "png": _look_at_png,
    "bmp": _look_at_bmp,
    "webp": _look_at_webp,
    "gif": _look_at_gif,
    "tiff": _look_at_tiff,
}
