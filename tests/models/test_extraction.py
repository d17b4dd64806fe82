"""Extraction: every image once, whoever does it, whenever it is interrupted."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from sphereface2.models.embedding import embed
from sphereface2.models.extraction import Extraction
from tests.models.test_embed import Net, Pixels, pictures


class Counted:
    """Images that remember which of them were read, and may fail at one of them."""

    def __init__(self, count: int, *, fails_at: int | None = None) -> None:
        self.images = pictures(count)
        self.fails_at = fails_at
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int, /) -> npt.NDArray[np.uint8]:
        if index == self.fails_at:
            raise ValueError(f"cannot read image {index}")
        self.read.append(index)
        image: npt.NDArray[np.uint8] = self.images[index]
        return image


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def extraction(tmp_path: Path, count: int, **what: str) -> Extraction:
    return Extraction(tmp_path / "faces.npy", count=count, dim=5, what=what, block_size=4)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 4, 10, 12])
def test_every_image_is_embedded_once_by_any_number_of_processes(
    tmp_path: Path, net: nn.Module, world: int, count: int
) -> None:
    images = Counted(count)
    job = extraction(tmp_path, count)
    job.start()
    for rank in range(world):
        job.work(net, images, preprocessing=Pixels(), share=(rank, world))
    job.finish()
    assert sorted(images.read) == list(range(count))
    expected = embed(net, images.images, preprocessing=Pixels(), batch_size=4)
    np.testing.assert_array_equal(np.load(tmp_path / "faces.npy"), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["faces.npy"]


def test_an_interrupted_extraction_goes_on_with_another_number_of_processes(
    tmp_path: Path, net: nn.Module
) -> None:
    job = extraction(tmp_path, 14)
    job.start()
    with pytest.raises(ValueError, match="cannot read image 9"):
        job.work(net, Counted(14, fails_at=9), preprocessing=Pixels())
    with pytest.raises(ValueError, match=r"of 14 images have no embedding .* run the same command"):
        job.finish()
    assert not (tmp_path / "faces.npy").exists()

    again, images = extraction(tmp_path, 14), Counted(14)
    done = again.start()
    assert done in (4, 8)
    for rank in range(2):
        again.work(net, images, preprocessing=Pixels(), share=(rank, 2))
    again.finish()
    assert sorted(images.read) == list(range(done, 14))
    expected = embed(net, images.images, preprocessing=Pixels(), batch_size=4)
    np.testing.assert_array_equal(np.load(tmp_path / "faces.npy"), expected)


def test_progress_counts_what_was_done_before(tmp_path: Path, net: nn.Module) -> None:
    job = extraction(tmp_path, 10)
    job.start()
    job.work(net, Counted(10), preprocessing=Pixels(), share=(0, 2))
    heard: list[tuple[int, int]] = []
    job.work(
        net,
        Counted(10),
        preprocessing=Pixels(),
        progress=lambda done, total: heard.append((done, total)),
    )
    assert heard == [(10, 10)]


def test_work_for_another_model_is_refused(tmp_path: Path) -> None:
    extraction(tmp_path, 10, model="one").start()
    with pytest.raises(ValueError, match=r"faces.npy.partial holds .* model = one, now it is two"):
        extraction(tmp_path, 10, model="two").start()


def test_a_finished_file_is_not_overwritten_unasked(tmp_path: Path, net: nn.Module) -> None:
    (tmp_path / "faces.npy").write_bytes(b"precious")
    job = extraction(tmp_path, 4)
    with pytest.raises(ValueError, match=r"faces.npy exists already; .*--overwrite"):
        job.start()
    job.start(overwrite=True)
    job.work(net, Counted(4), preprocessing=Pixels())
    job.finish()
    assert np.load(tmp_path / "faces.npy").shape == (4, 5)


def test_what_was_cut_off_while_it_was_laid_out_begins_anew(tmp_path: Path) -> None:
    partial = tmp_path / "faces.npy.partial"
    partial.mkdir()
    (partial / "embeddings.npy").write_bytes(b"cut")
    assert extraction(tmp_path, 10).start() == 0


def test_an_embedding_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    net = Net().eval()
    with torch.no_grad():
        net.output.bias.fill_(torch.nan)
    job = extraction(tmp_path, 6)
    job.start()
    with pytest.raises(ValueError, match="embedding of image 0 is not finite"):
        job.work(net, Counted(6), preprocessing=Pixels())


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"faces.txt: embeddings are written as .npy"):
        Extraction(tmp_path / "faces.txt", count=1, dim=2, what={})
    with pytest.raises(ValueError, match="no images"):
        Extraction(tmp_path / "faces.npy", count=0, dim=2, what={})
