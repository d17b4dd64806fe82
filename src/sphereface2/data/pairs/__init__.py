"""Pairs: what verification is measured on, by name. One line adds a format."""

from collections.abc import Callable

from sphereface2.data.pairs.bin_set import bin_set
from sphereface2.data.pairs.drawn import drawn_pairs
from sphereface2.data.pairs.lfw import lfw_pairs
from sphereface2.data.pairs.pair_list import pair_list
from sphereface2.data.pairs.synthetic import synthetic_verification_sets
from sphereface2.data.pairs.verification_set import VerificationSet

VERIFICATION_SETS: dict[str, Callable[..., list[VerificationSet]]] = {
    "bin": bin_set,
    "drawn": drawn_pairs,
    "lfw": lfw_pairs,
    "pairs": pair_list,
    "synthetic": synthetic_verification_sets,
}
