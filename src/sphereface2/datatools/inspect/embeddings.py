"""The embeddings of a source's images beside its report: kept, and taken up again after a stop."""

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.source import Faces
from sphereface2.files import remove
from sphereface2.models.extraction import Extraction
from sphereface2.models.folder import LoadedModel
from sphereface2.progress import Progress


def embed_source(
    source: EncodedImages,
    numbers: npt.NDArray[np.int64],
    path: Path,
    *,
    model: LoadedModel,
    key: str,
    device: torch.device | str = "cpu",
    workers: int = 1,
    progress: Progress | None = None,
) -> npt.NDArray[np.float32]:
    """The embeddings (N, D) of the images with these numbers, as a read-only map of `path`.

    `key` stands for model and data (`embedding_key`): embeddings of the same are taken as they are
    or resumed, others are replaced.
    """
    extraction = Extraction(path, count=len(numbers), dim=model.embedding_dim, what={"key": key})
    keyed = path.with_suffix(".key")
    if not keyed.is_file() or keyed.read_text(encoding="utf-8") != key:
        path.unlink(missing_ok=True)
        remove(extraction.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        keyed.write_text(key, encoding="utf-8")
    if not path.is_file():
        extraction.start()
        embedder = model.embedder(workers=workers, device=device)
        extraction.work(embedder, Faces(source, numbers), progress=progress)
        extraction.finish()
    embeddings: npt.NDArray[np.float32] = np.load(path, mmap_mode="r")
    return embeddings


def embedding_key(model: Path, digests: npt.NDArray[np.uint64]) -> str:
    """A name for the embeddings of images with these digests by the model in this folder."""
    summary = hashlib.blake2b(digests.tobytes(), digest_size=16)
    for file in sorted(model.iterdir()):
        with file.open("rb") as content:
            summary.update(hashlib.file_digest(content, "sha256").digest())
    return summary.hexdigest()
