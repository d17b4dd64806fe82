"""Protocols: one file each, and one line in this table.

A protocol says which images it needs and what it makes of their embeddings; its command-line
flags, its report, its tables and its saved result follow from that (`protocol.py` is the contract).
"""

from collections.abc import Callable
from typing import Any

from sphereface2.evaluation.protocols.groups import Groups
from sphereface2.evaluation.protocols.identification import Identification
from sphereface2.evaluation.protocols.ijb import IjbB, IjbC
from sphereface2.evaluation.protocols.megaface import MegaFace
from sphereface2.evaluation.protocols.protocol import Protocol
from sphereface2.evaluation.protocols.tinyface import TinyFace

PROTOCOLS: dict[str, Callable[..., Protocol[Any]]] = {
    "groups": Groups,
    "identification": Identification,
    "ijb-b": IjbB,
    "ijb-c": IjbC,
    "megaface": MegaFace,
    "tinyface": TinyFace,
}
