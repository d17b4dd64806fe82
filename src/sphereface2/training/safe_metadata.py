"""The index of a checkpoint's tensors, read so that a file from a stranger can run no code.

torch.distributed.checkpoint writes it as a pickle, which could name any function to call. What
an index of tensors is made of is little, and nothing else is let in.
"""

from __future__ import annotations

import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import torch

_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
}


def load_metadata(path: Path) -> Any:
    """The index in a file; pickle.UnpicklingError if it holds anything but an index."""
    with path.open("rb") as file:
        found = _Unpickler(file).load()
    if f"{type(found).__module__}.{type(found).__name__}" != f"{_METADATA}.Metadata":
        raise pickle.UnpicklingError(f"{path} is no index of tensors")
    return found


def _enum_member(owner: Any, name: str) -> Any:
    """What `getattr` may do here: some versions of Python pickle a member of an enum by it."""
    if isinstance(owner, type) and issubclass(owner, Enum) and name in owner.__members__:
        return owner[name]
    raise pickle.UnpicklingError(f"an index of tensors has no {owner!r}.{name}")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) in _ALLOWED:
            return super().find_class(module_name, global_name)
        if (module_name, global_name) == ("builtins", "getattr"):
            return _enum_member
        if module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype):
            return getattr(torch, global_name)
        raise pickle.UnpicklingError(f"an index of tensors has no {module_name}.{global_name}")
