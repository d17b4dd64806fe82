"""Pairs: what verification is measured on, by name. One line adds a format."""

from sphereface2.data.pairs.bin_set import BIN
from sphereface2.data.pairs.drawn import DRAWN
from sphereface2.data.pairs.lfw import LFW
from sphereface2.data.pairs.pair_list import PAIR_LIST
from sphereface2.data.pairs.synthetic import SYNTHETIC
from sphereface2.data.pairs.verification_set import PairFormat

VERIFICATION_SETS: dict[str, PairFormat] = {
    "bin": BIN,
    "drawn": DRAWN,
    "lfw": LFW,
    "pairs": PAIR_LIST,
    "synthetic": SYNTHETIC,
}
