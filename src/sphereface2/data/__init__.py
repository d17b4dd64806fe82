"""Data: where training images and verification pairs come from, by name."""

from collections.abc import Callable

from sphereface2.data.folder import ImageFolder
from sphereface2.data.pair_list import pair_list
from sphereface2.data.source import Source
from sphereface2.data.synthetic import SyntheticFaces, synthetic_verification_sets
from sphereface2.data.verification_sets import VerificationSet

SOURCES: dict[str, Callable[..., Source]] = {
    "folder": ImageFolder,
    "synthetic": SyntheticFaces,
}

VERIFICATION_SETS: dict[str, Callable[..., list[VerificationSet]]] = {
    "pairs": pair_list,
    "synthetic": synthetic_verification_sets,
}
