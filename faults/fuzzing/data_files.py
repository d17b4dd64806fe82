"""Data sets under test: records, lists, Parquet, pictures, pairs and the files of benchmarks."""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from faults.fuzzing.parser import Parser, part, write_parts
from sphereface2.data.pairs import format_of, named_pairs, sets_of_word
from sphereface2.data.pairs.bin_set import bin_set
from sphereface2.data.pairs.verification_set import VerificationSet
from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.image_file import check_header, decode_photo, ending_of
from sphereface2.data.sources.image_list import ImageList
from sphereface2.data.sources.parquet import ParquetImages, ParquetWriter
from sphereface2.data.sources.recordio import RecordIO
from sphereface2.data.sources.recordio_writer import (
    FIRST,
    LAST,
    LENGTH_BITS,
    MAGIC,
    MAX_LENGTH,
    MIDDLE,
    WHOLE,
    RecordWriter,
    to_frames,
)
from sphereface2.evaluation.embedding_files import HEADER, read_embeddings
from sphereface2.evaluation.protocols.groups import Groups
from sphereface2.evaluation.protocols.ijb import IjbC
from sphereface2.evaluation.protocols.megaface import MegaFace
from sphereface2.evaluation.protocols.protocol import Embedded, Embeddings, Protocol
from sphereface2.evaluation.protocols.protocol import ImageList as Wanted
from sphereface2.evaluation.protocols.tinyface import LISTS, TinyFace

_LOOKED_AT = 4  # images of a source that are decoded
_MEASURED = 64  # images of a benchmark up to which it is measured
_MAGIC = struct.pack("<I", MAGIC)


def picture(ending: str = ".png", side: int = 12, seed: int = 0) -> bytes:
    """A small picture, encoded."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    return bytes(cv2.imencode(ending, pixels)[1].tobytes())


# -- training images -------------------------------------------------------------------------------


def _records(folder: Path) -> list[list[bytes]]:
    path = folder / "a.rec"
    writer = RecordWriter(path)
    for number in range(4):
        writer.write(picture(".jpg", seed=number), number // 2)
    writer.finish()
    writer.close()
    rec, idx = path.read_bytes(), path.with_suffix(".idx").read_bytes()
    header = struct.pack("<IfQQ", 0, 3.0, 1, 0)
    split = to_frames(header + b"ab\0\0" + _MAGIC + picture())
    whole = to_frames(header + picture())
    # Lengths beyond the end of the file, which the .idx, a split record or nobody guards.
    last = split.rindex(_MAGIC) + 4
    beyond = [_longer(whole, 4), _longer(split, last)]
    return [
        [rec, idx, b"Ada\nBen\n"], [rec], [split], [whole],
        *([each, b"0\t0\n"] for each in beyond), *([each] for each in beyond),
    ]  # fmt: skip


def _longer(frames: bytes, place: int) -> bytes:
    """Frames, of which the one whose length stands at `place` announces all that it can."""
    (word,) = struct.unpack_from("<I", frames, place)
    return frames[:place] + struct.pack("<I", word | MAX_LENGTH - 3) + frames[place + 4 :]


def _read_records(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["a.rec", "a.idx", "a.people.txt"], parts)
    try:
        images = RecordIO(path=str(folder / "a.rec"), on_bad_image="skip")
        whole = set(_bodies(part(parts, 0)))
        for number in range(min(len(images), _MEASURED)):
            assert bytes(images.encoded(number)) in whole, "an image that its frame does not hold"
        _use(images)
        images.names_of_people()
    finally:
        _resume_writing(folder / "b.rec", part(parts, 0))


def _bodies(rec: bytes) -> Iterator[bytes]:
    """The image of every whole record, wherever it stands: the format as a plain loop."""
    for start in range(0, len(rec) - 7, 4):
        frames: list[bytes] = []
        place = start
        while rec[place : place + 4] == _MAGIC:
            word = int.from_bytes(rec[place + 4 : place + 8], "little")
            kind, end = word >> LENGTH_BITS, place + 8 + (word & MAX_LENGTH)
            if kind not in ((MIDDLE, LAST) if frames else (WHOLE, FIRST)) or end > len(rec):
                break
            frames.append(rec[place + 8 : end])
            if kind in (WHOLE, LAST):
                payload = _MAGIC.join(frames)
                yield payload[24 + 4 * int.from_bytes(payload[:4], "little") :]
                break
            place = end + -end % 4


def _resume_writing(path: Path, written: bytes) -> None:
    """What a killed conversion has left is cut where it is not whole, and never filled up."""
    left = path.with_name(f"{path.name}.part")
    left.write_bytes(written)
    writer = RecordWriter(path, resume=True)
    writer.close()
    assert not writer.written or left.stat().st_size <= len(written), "filled up"


def _use(images: EncodedImages) -> None:
    for number in range(min(len(images), _LOOKED_AT)):
        images.name(number)
        images.location(number)
        images[number]
    if zlib.crc32(images.labels.tobytes()) % 16 == 0:
        images.prepare()  # seldom: it starts a thread for each input


def _lists(folder: Path) -> list[list[bytes]]:
    return [
        [b".txt", b"a.png 0\na.png 1\n# note\nb.png -1\n"],
        [b".lst", b"0\t1.0\ta.png\n1\t2.0\tb.png\n"],
        [b".lst", b"1\ta.png\t0\t1\t2\t3\t4\n1\tb.png\t1\t1\t2\t3\t4\n"],
        [b".csv", b'path,label\n"a.png",Ada\nb.png,Ben\n'],
        [b".tsv", "a.png\tÄda\nb.png\tBen\n".encode()],
    ]


def _read_list(folder: Path, parts: Sequence[bytes]) -> None:
    ending = part(parts, 0).decode("ascii", "replace")
    path = folder / ("a" + (ending if ending in (".txt", ".lst", ".csv", ".tsv") else ".txt"))
    path.write_bytes(_without_roots(part(parts, 1)))
    (folder / "a.png").write_bytes(_PICTURE)
    _use(ImageList(path=str(path), on_bad_image="skip"))


def _without_roots(lines: bytes) -> bytes:
    """Only names beside it: a list may name files anywhere, which the watch takes for theft."""
    return re.sub(rb"(?m)(^|[\s,;\"'])/+", rb"\1", lines)


_PICTURE = picture()


def _parquets(folder: Path) -> list[list[bytes]]:
    path = folder / "a.parquet"
    writer = ParquetWriter(path, rows_per_group=2)
    for number in range(4):
        writer.write(picture(seed=number), label=number // 2, person="Ada", name=f"A/{number}.png")
    writer.finish()
    return [[path.read_bytes()]]


def _read_parquet(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["a.parquet"], parts)
    _use(ParquetImages(path=str(folder / "a.parquet"), on_bad_image="skip"))


# -- pictures --------------------------------------------------------------------------------------


def _pictures(folder: Path) -> list[list[bytes]]:
    endings = (".jpg", ".png", ".bmp", ".webp", ".tiff", ".gif")
    found = [[picture(ending, side=9)] for ending in endings]
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    jpeg = found[0][0]
    turned = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]
    return [*found, [turned], [_heic()]]


def _heic() -> bytes:
    import pillow_heif

    pixels = np.zeros((16, 16, 3), np.uint8)
    made = io.BytesIO()
    pillow_heif.from_bytes("RGB", (16, 16), pixels.tobytes()).save(made, quality=20)
    return made.getvalue()


def _read_picture(folder: Path, parts: Sequence[bytes]) -> None:
    content = part(parts, 0)
    ending_of(content)
    try:
        header = check_header(content)
    except ValueError:
        header = None
    pixels = decode_photo(content, "photo")
    if header is not None and {header.width, header.height} != {*pixels.shape[:2]}:
        raise AssertionError(f"{header} was decoded as {pixels.shape}: a limit can be passed by")


def _pngs(folder: Path) -> list[list[bytes]]:
    grey = cv2.imencode(".png", np.zeros((9, 9), np.uint8))[1].tobytes()
    return [[picture()], [bytes(grey)]]


def _read_png(folder: Path, parts: Sequence[bytes]) -> None:
    """PNG whose checksums are right again, so that a change reaches what they protect."""
    content = part(parts, 0)
    made, place = bytearray(content[:8]), 8
    while place + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, place)
        body = content[place + 4 : place + 8 + length]
        made += content[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += 12 + length
    _read_picture(folder, [bytes(made)])


# -- pairs -----------------------------------------------------------------------------------------


def _bins(folder: Path) -> list[list[bytes]]:
    pictures = [picture(".jpg", seed=number % 3) for number in range(2)]
    images, same = pictures * 20, [True, False] * 10
    arrays = [np.frombuffer(each, np.uint8) for each in pictures] * 20
    small = [b"image"] * 40
    found = [pickle.dumps((images, same), protocol) for protocol in (0, 2, 3, 4)]
    found += [pickle.dumps((arrays, np.array(same)), protocol) for protocol in (2, 5)]
    found += [pickle.dumps((small, [1, 0] * 10), protocol) for protocol in (2, 4)]
    found += [pickle.dumps((np.array(small), np.array(same)), 2)]
    return [[each] for each in found]


def _read_bin(folder: Path, parts: Sequence[bytes]) -> None:
    path = folder / "a.bin"
    path.write_bytes(part(parts, 0))
    (found,) = bin_set(path=str(path))
    _use_pairs(found)


def _use_pairs(found: VerificationSet) -> None:
    for number in range(min(len(found.images), _LOOKED_AT)):
        try:
            found.images[number]
        except (ValueError, OSError):
            continue


def _pair_lists(folder: Path) -> list[list[bytes]]:
    paths = b"".join(b"p%d/a.png p%d/b.png %d\n" % (i, i + i % 2, 1 - i % 2) for i in range(20))
    lfw = b"".join(b"Ada\t%d\t%d\n" % (i, i + 1) for i in range(1, 11))
    lfw += b"".join(b"Ada\t%d\tBen\t%d\n" % (i, i) for i in range(1, 11))
    folds = b"".join(b"Ada %d %d\nAda %d Ben %d\n" % (i, i + 1, i, i) for i in range(1, 11))
    return [[paths], [paths.replace(b" ", b"\t")], [b"10\n" + lfw], [b"10\t1\n" + folds], [lfw]]


def _read_pairs(folder: Path, parts: Sequence[bytes]) -> None:
    path = folder / "pairs.txt"
    path.write_bytes(_without_roots(part(parts, 0)))
    format_of(path)
    named_pairs(path)
    (found,) = sets_of_word(str(path), root=str(folder), missing="skip")
    _use_pairs(found)


# -- benchmarks ------------------------------------------------------------------------------------


def _measure(protocol: Protocol[object], lists: Sequence[Wanted]) -> None:  # type: ignore[type-var]  # any
    """Measure with embeddings that are the same for every list of a length."""
    if sum(len(each.names or ()) for each in lists) > _MEASURED:
        return
    protocol.measure(Embeddings({each.name: _embedded(each.names or ()) for each in lists}))


def _embedded(names: Sequence[str]) -> Embedded:
    vectors = np.random.default_rng(0).normal(size=(len(names), 4)).astype(np.float32)
    there = np.ones(len(names), np.bool_)
    return Embedded(vectors, "given", names, None, there, "embeddings")


_IJB = ("face_tid_mid.txt", "name_5pts_score.txt", "template_pair_label.txt",
        "1N_gallery_G1.csv", "1N_gallery_G2.csv", "1N_probe_mixed.csv")  # fmt: skip


def _ijbs(folder: Path) -> list[list[bytes]]:
    names = [f"{number}.jpg" for number in range(8)]
    media = "".join(f"{name} {number // 2 + 1} {number}\n" for number, name in enumerate(names))
    points = "".join(f"{name} {'1.5 2 ' * 5}0.9\n" for name in names)
    pairs = "1 2 0\n1 3 1\n2 4 1\n2 3 0\n"
    head = "TEMPLATE_ID,SUBJECT_ID,FILENAME\n"
    lists = [head + rows for rows in ("1,1,a\n", "2,2,b\n", "3,1,c\n4,2,d\n4,2,e\n")]
    return [[text.encode() for text in (media, points, pairs, *lists)]]


def _read_ijb(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder / "meta", [f"ijbc_{name}" for name in _IJB], parts)
    protocol = IjbC()
    _measure(protocol, protocol.read(folder))


def _megafaces(folder: Path) -> list[list[bytes]]:
    probes = {"path": ["a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg"], "id": ["a", "a", "b", "b"]}
    others = {"path": ["1/x.jpg", "2/y.jpg", "3/z.jpg"]}
    noises = [b"# noisy\na/2.jpg\n", b"3\t3/z.jpg\n"]
    return [[json.dumps(probes).encode(), json.dumps(others).encode(), *noises]]


def _read_megaface(folder: Path, parts: Sequence[bytes]) -> None:
    names = ["templatelists/facescrub_features_list.json",
             "templatelists/megaface_features_list.json_3_1",
             "facescrub_noises.txt", "megaface_noises.txt"]  # fmt: skip
    write_parts(folder, names, parts)
    protocol = MegaFace(refined=len(parts) > 2)
    _measure(protocol, protocol.read(folder))


def _tinyfaces(folder: Path) -> list[list[bytes]]:
    return [[b"1_1.jpg\n2_1.jpg\n2_2.jpg\n", b"x.jpg\ny.jpg\n", b"1_3.jpg\n2_4.jpg\n9_1.jpg\n"]]


def _read_tinyface(folder: Path, parts: Sequence[bytes]) -> None:
    """The names beside saved embeddings, of which there are as many."""
    lists: dict[str, Embedded] = {}
    for name, text in zip(LISTS, [*parts, b"", b"", b""], strict=False):
        rows = sum(1 for line in text.split(b"\n") if line.strip())
        np.save(folder / f"{name}.npy", np.eye(max(rows, 1), 4, dtype=np.float32) + 0.5)
        (folder / f"{name}.txt").write_bytes(text)
        saved = read_embeddings(folder / f"{name}.npy", check_values=True)
        lists[name] = _embedded(list(saved.names or ()))
    TinyFace().measure(Embeddings(lists))


def _groups(folder: Path) -> list[list[bytes]]:
    pairs = _pair_lists(folder)
    african = b"10\n" + pairs[4][0]
    names = sorted({word for line in pairs[0][0].splitlines() for word in line.split()[:2]})
    table = b"".join(b"%s,%s\n" % (name, b"xy"[i % 2 : i % 2 + 1]) for i, name in enumerate(names))
    return [[african, african], [b"", b"", pairs[0][0], table]]


def _read_groups(folder: Path, parts: Sequence[bytes]) -> None:
    names = ["txts/African/African_pairs.txt", "txts/Asian/Asian_pairs.txt", "list.txt", "of.csv"]
    write_parts(folder, names, parts)
    if part(parts, 2):
        protocol = Groups(pairs=folder / "list.txt", groups=folder / "of.csv")
    else:
        protocol = Groups()
    _measure(protocol, protocol.read(folder))


# -- saved embeddings ------------------------------------------------------------------------------

_TABLE = np.arange(24, dtype=np.float32).reshape(4, 6) + 1
_NAMES = b"a.jpg Ada\nb.jpg Ada\nc.jpg Ben\nd.jpg Ben\n"


def _npy(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    made = io.BytesIO()
    np.save(made, values, allow_pickle=False)
    return made.getvalue()


def _npys(folder: Path) -> list[list[bytes]]:
    pairs = _TABLE.reshape(4, 2, 3)
    found = [_TABLE, pairs, _TABLE.astype("<f2"), np.asfortranarray(_TABLE), _TABLE.astype(">f8")]
    return [[_npy(each), _NAMES] for each in found]


def _read_npy(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["a.npy", "a.txt"], parts)
    read_embeddings(folder / "a.npy", check_values=True)


def _npzs(folder: Path) -> list[list[bytes]]:
    found = []
    for save in (np.savez, np.savez_compressed):
        made = io.BytesIO()
        save(made, embeddings=_TABLE, names=np.array(list("abcd")), people=np.arange(4))
        found.append([made.getvalue()])
        made = io.BytesIO()
        save(made, embs=_TABLE, embs_f=_TABLE)
        found.append([made.getvalue()])
    return found


def _read_npz(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["a.npz", "a.txt"], parts, optional=False)
    read_embeddings(folder / "a.npz", check_values=True)


_MEMBERS = ("embeddings.npy", "mirrored.npy", "names.npy", "people.npy")


def _npz_members(folder: Path) -> list[list[bytes]]:
    return [[_npy(_TABLE), _npy(_TABLE), _npy(np.array(list("abcd"))), _npy(np.arange(4))]]


def _read_npz_members(folder: Path, parts: Sequence[bytes]) -> None:
    """An .npz whose zip file is sound, so that a change reaches the arrays within."""
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in zip(_MEMBERS, parts, strict=False):
            if content:
                archive.writestr(name, content)
    read_embeddings(folder / "a.npz", check_values=True)


def _features(folder: Path) -> list[list[bytes]]:
    return [[HEADER.pack(6, 1, 4, 5) + _TABLE[0].tobytes(), b"a.jpg Ada\n"]]


def _read_feature(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["a.bin", "a.txt"], parts, optional=False)
    read_embeddings(folder / "a.bin", check_values=True)


PARSERS = {
    "recordio": Parser(_records, _read_records),
    "image-list": Parser(_lists, _read_list),
    "parquet": Parser(_parquets, _read_parquet),
    "picture": Parser(_pictures, _read_picture),
    "png": Parser(_pngs, _read_png),
    "bin": Parser(_bins, _read_bin),
    "pairs": Parser(_pair_lists, _read_pairs),
    "ijb": Parser(_ijbs, _read_ijb),
    "megaface": Parser(_megafaces, _read_megaface),
    "tinyface": Parser(_tinyfaces, _read_tinyface),
    "groups": Parser(_groups, _read_groups),
    "npy": Parser(_npys, _read_npy),
    "npz": Parser(_npzs, _read_npz),
    "npz-members": Parser(_npz_members, _read_npz_members),
    "feature": Parser(_features, _read_feature),
}
