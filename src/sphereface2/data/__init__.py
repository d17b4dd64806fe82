"""Data: where training images and verification pairs come from, by name."""

from collections.abc import Callable

from sphereface2.data.bin_set import bin_set
from sphereface2.data.drawn_pairs import drawn_pairs
from sphereface2.data.folder import ImageFolder
from sphereface2.data.image_list import ImageList
from sphereface2.data.lfw_pairs import lfw_pairs
from sphereface2.data.pair_list import pair_list
from sphereface2.data.parquet import ParquetImages
from sphereface2.data.recordio import RecordIO
from sphereface2.data.source import Source
from sphereface2.data.synthetic import SyntheticFaces, synthetic_verification_sets
from sphereface2.data.verification_sets import VerificationSet

SOURCES: dict[str, Callable[..., Source]] = {
    "folder": ImageFolder,
    "list": ImageList,
    "parquet": ParquetImages,
    "recordio": RecordIO,
    "synthetic": SyntheticFaces,
}

VERIFICATION_SETS: dict[str, Callable[..., list[VerificationSet]]] = {
    "bin": bin_set,
    "drawn": drawn_pairs,
    "lfw": lfw_pairs,
    "pairs": pair_list,
    "synthetic": synthetic_verification_sets,
}
