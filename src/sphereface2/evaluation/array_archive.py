"""The arrays of an .npz file, read as data: no pickles, and nothing larger than the file can hold.

NumPy reserves the memory that an array's header claims before it reads, and unpacks whatever a zip
file says; an .npz of a few bytes would so take all memory.
"""

from __future__ import annotations

import io
import math
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_RATIO = 200
"""Embeddings get hardly smaller, texts some dozen times; zeros, as bombs hold, a thousand times."""
_ALWAYS = 1 << 24  # bytes that are unpacked whatever the ratio
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an .npz by their names; a ValueError says what is wrong, after the path."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            if size > _ALWAYS + _RATIO * path.stat().st_size:
                raise ValueError(f"it would unpack to {size:,} bytes")
            return {
                member.filename.removesuffix(".npy"): _array(archive.read(member))
                for member in members
            }
    except ValueError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy's parser raise errors of many kinds
        raise ValueError(f"it is damaged or cut short ({error})") from None


def _array(content: bytes) -> npt.NDArray[Any]:
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"it has an array of the format {version[0]}.{version[1]}")
    shape, is_fortran, dtype = _HEADERS[version](file)
    if dtype.kind not in "biufUS":
        raise ValueError(f"it holds an array of the type {dtype}, which could run code")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"it has an array of another shape than {shape}, which it claims")
    if not count * dtype.itemsize:
        return np.empty(shape, dtype)
    table = np.frombuffer(content, dtype, count, file.tell())
    if dtype.kind == "U" and table.view(f"{dtype.str[0]}u4").max() > sys.maxunicode:
        raise ValueError("it holds texts that are not Unicode")
    return table.reshape(shape, order="F" if is_fortran else "C")
