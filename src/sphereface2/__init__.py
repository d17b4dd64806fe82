"""SphereFace2 and the losses it is compared with: train, evaluate and use face recognition.

from sphereface2 import SphereFace2
head = SphereFace2(512, num_classes=8631)
loss = head(embeddings, labels)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphereface2.backbones import build_backbone
    from sphereface2.heads import SphereFace2, SphereFace2A, SphereFace2M, build_head
    from sphereface2.models.folder import load_model
    from sphereface2.recognition.gate import Gate
    from sphereface2.recognition.recognizer import Recognizer
    from sphereface2.service.client import Client

__version__ = "0.1.0"

# Where each public name lives. They are imported when first asked for, because torch takes
# seconds to load and `sphereface2 --help` does not need it.
_HOME = {
    "SphereFace2": "sphereface2.heads",
    "SphereFace2A": "sphereface2.heads",
    "SphereFace2M": "sphereface2.heads",
    "build_head": "sphereface2.heads",
    "build_backbone": "sphereface2.backbones",
    "load_model": "sphereface2.models.folder",
    "Gate": "sphereface2.recognition.gate",
    "Recognizer": "sphereface2.recognition.recognizer",
    "Client": "sphereface2.service.client",
}

__all__ = [
    "Client",
    "Gate",
    "Recognizer",
    "SphereFace2",
    "SphereFace2A",
    "SphereFace2M",
    "__version__",
    "build_backbone",
    "build_head",
    "load_model",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sphereface2' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
