"""Protocols on real files: a model or saved embeddings in, a result out.

`evaluation` holds the protocols as functions of embeddings; here they meet folders, models and
several ranks. All ranks call a protocol: they share the embedding, the first measures and the
others get None.
"""

from collections.abc import Callable

from sphereface2.evaluation.protocols.identification import identification
from sphereface2.evaluation.protocols.ijb import ijb_b, ijb_c
from sphereface2.evaluation.protocols.megaface import megaface_challenge
from sphereface2.evaluation.protocols.subject import Subject
from sphereface2.evaluation.results import ProtocolResult
from sphereface2.models.embedder import Embedder, Faces, is_model, open_embedder

PROTOCOLS: dict[str, Callable[..., ProtocolResult | None]] = {
    "identification": identification,
    "ijb-b": ijb_b,
    "ijb-c": ijb_c,
    "megaface": megaface_challenge,
}

__all__ = [
    "PROTOCOLS",
    "Embedder",
    "Faces",
    "Subject",
    "is_model",
    "open_embedder",
]
