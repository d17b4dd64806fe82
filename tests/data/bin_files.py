"""Sets of pairs as .bin files, for the tests that read them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from sphereface2.data.pairs.bin_set import BinWriter


def write_bin(path: Path, images: Iterable[bytes], same: Sequence[bool]) -> None:
    """Write encoded images 2i, 2i+1 and whether pair i shows one person as a .bin file."""
    with path.open("wb") as file:
        writer = BinWriter(file)
        writer.begin()
        for image in images:
            writer.write(image)
        writer.finish(same)
