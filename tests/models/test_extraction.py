"""Extraction: every image once, by whichever process, whenever it is interrupted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sphereface2.models.embedder import NetworkEmbedder
from sphereface2.models.extraction import Extraction
from tests.models.test_embed import Meeting, Net, Pixels, pictures


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
def net() -> NetworkEmbedder:
    torch.manual_seed(0)
    return NetworkEmbedder(Net().eval(), Pixels(), batch_size=4)


def extraction(tmp_path: Path, count: int, **what: str) -> Extraction:
    return Extraction(tmp_path / "faces.npy", count=count, dim=5, what=what, block_size=4)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 4, 10, 12])
def test_every_image_is_embedded_once_by_any_number_of_processes(
    tmp_path: Path, net: NetworkEmbedder, world: int, count: int
) -> None:
    images = Counted(count)
    job = extraction(tmp_path, count)
    job.start()
    for rank in range(world):
        job.work(net, images, share=(rank, world))
    job.finish()
    assert sorted(images.read) == list(range(count))
    expected = net.embed(images.images)
    np.testing.assert_array_equal(np.load(tmp_path / "faces.npy"), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["faces.npy"]


def test_an_interrupted_extraction_resumes_with_another_number_of_processes(
    tmp_path: Path, net: NetworkEmbedder
) -> None:
    job = extraction(tmp_path, 14)
    job.start()
    with pytest.raises(ValueError, match="cannot read image 9"):
        job.work(net, Counted(14, fails_at=9))
    with pytest.raises(ValueError, match=r"of 14 images have no embedding .* run the same command"):
        job.finish()
    assert not (tmp_path / "faces.npy").exists()

    again, images = extraction(tmp_path, 14), Counted(14)
    done = again.start()
    assert done in (4, 8)
    for rank in range(2):
        again.work(net, images, share=(rank, 2))
    again.finish()
    assert sorted(images.read) == list(range(done, 14))
    expected = net.embed(images.images)
    np.testing.assert_array_equal(np.load(tmp_path / "faces.npy"), expected)


def test_progress_counts_what_was_done_before(tmp_path: Path, net: NetworkEmbedder) -> None:
    job = extraction(tmp_path, 10)
    job.start()
    job.work(net, Counted(10), share=(0, 2))
    heard: list[tuple[int, int]] = []
    job.work(
        net,
        Counted(10),
        progress=lambda done, total: heard.append((done, total)),
    )
    assert heard == [(10, 10)]


def test_work_for_another_model_is_refused(tmp_path: Path) -> None:
    extraction(tmp_path, 10, model="one").start()
    with pytest.raises(ValueError, match=r"faces.npy.partial holds .* model = one, now it is two"):
        extraction(tmp_path, 10, model="two").start()


def test_a_finished_file_is_not_overwritten_unasked(tmp_path: Path, net: NetworkEmbedder) -> None:
    (tmp_path / "faces.npy").write_bytes(b"precious")
    job = extraction(tmp_path, 4)
    with pytest.raises(ValueError, match=r"faces.npy exists already; .*--overwrite"):
        job.start()
    job.start(overwrite=True)
    job.work(net, Counted(4))
    job.finish()
    assert np.load(tmp_path / "faces.npy").shape == (4, 5)


def test_a_folder_that_stays_behind_does_not_undo_what_is_done(
    tmp_path: Path, net: NetworkEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    job, images = extraction(tmp_path, 6), Counted(6)
    job.start()
    job.work(net, images)
    with monkeypatch.context() as patch:
        patch.setattr("sphereface2.models.extraction.remove", fail)
        job.finish()
    np.testing.assert_array_equal(np.load(tmp_path / "faces.npy"), net.embed(images.images))
    assert job.path.exists()
    with pytest.raises(ValueError, match="exists already"):
        extraction(tmp_path, 6).start()
    assert [each.name for each in tmp_path.iterdir()] == ["faces.npy"]


def test_what_was_cut_off_while_it_was_laid_out_begins_again(tmp_path: Path) -> None:
    partial = tmp_path / "faces.npy.partial"
    partial.mkdir()
    (partial / "embeddings.npy").write_bytes(b"cut")
    assert extraction(tmp_path, 10).start() == 0


def test_a_folder_of_someone_else_stays(tmp_path: Path) -> None:
    diary = tmp_path / "faces.npy.partial" / "diary.txt"
    diary.parent.mkdir()
    diary.write_text("mine")
    with pytest.raises(ValueError, match=r"faces\.npy\.partial is in the way and holds no interr"):
        Extraction(tmp_path / "faces.npy", count=10, dim=5, what={}).start()
    assert diary.read_text() == "mine"


def test_an_embedding_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    faulty = Net().eval()
    with torch.no_grad():
        faulty.output.bias.fill_(torch.nan)
    job = extraction(tmp_path, 6)
    job.start()
    with pytest.raises(ValueError, match="embedding of image 0 is not finite"):
        job.work(NetworkEmbedder(faulty, Pixels()), Counted(6))


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"faces.txt: embeddings are written as .npy"):
        Extraction(tmp_path / "faces.txt", count=1, dim=2, what={})
    with pytest.raises(ValueError, match="no images"):
        Extraction(tmp_path / "faces.npy", count=0, dim=2, what={})


def test_options_reach_the_embedding(tmp_path: Path, net: NetworkEmbedder) -> None:
    images = Counted(10, fails_at=9)
    job = extraction(tmp_path, 10)
    job.start()
    plain = replace(net, flip=False)
    job.work(plain, images, missing="skip")
    job.finish()
    found = np.load(tmp_path / "faces.npy")
    assert np.isnan(found).all(axis=1).tolist() == [False] * 9 + [True]
    expected = plain.embed(images.images[:9])
    np.testing.assert_allclose(found[:9], expected, atol=1e-6)


def test_workers_read_at_the_same_time(tmp_path: Path, net: NetworkEmbedder) -> None:
    images = Meeting(pictures(8), readers=3)
    job = extraction(tmp_path, 8)
    job.start()
    job.work(replace(net, workers=3), images)
    assert images.met


def test_blocks_are_marked_now_and_then(
    tmp_path: Path, net: NetworkEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, marked in ((-1.0, [4, 8, 10]), (600.0, [0, 0, 0])):
        monkeypatch.setattr("sphereface2.models.extraction._SECONDS_BETWEEN_MARKS", seconds)
        job = Extraction(tmp_path / f"{seconds}.npy", count=10, dim=5, what={}, block_size=4)
        job.start()
        heard: list[int] = []
        done: list[int] = []

        def note(
            now: int,
            total: int,
            heard: list[int] = heard,
            done: list[int] = done,
            job: Extraction = job,
        ) -> None:
            assert total == 10
            heard.append(now)
            done.append(job.done())

        job.work(net, Counted(10), progress=note)
        assert (heard, done) == ([4, 8, 10], marked)
        assert job.done() == 10


def test_what_was_begun_is_written_down_and_may_do_without_missing_images(tmp_path: Path) -> None:
    extraction(tmp_path, 10, model="one", missing="error").start()
    noted = tmp_path / "faces.npy.partial" / "what.json"
    begun = {"images": 10, "dim": 5, "block_size": 4, "model": "one", "missing": "error"}
    assert json.loads(noted.read_text()) == begun
    assert extraction(tmp_path, 10, model="one", missing="skip").start() == 0
    assert json.loads(noted.read_text()) == {**begun, "missing": "skip"}
    with pytest.raises(ValueError, match="with block_size = 4, now it is 256"):
        Extraction(tmp_path / "faces.npy", count=10, dim=5, what={"model": "one"}).start()
    with pytest.raises(ValueError, match="the block size must be at least 1, got 0"):
        Extraction(tmp_path / "faces.npy", count=10, dim=5, what={}, block_size=0)


def test_the_image_whose_embedding_is_not_finite_is_named(tmp_path: Path) -> None:
    class Fragile(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            black = (images == -1).flatten(1).all(dim=1)
            found = super().forward(images)
            return torch.where(black[:, None], torch.nan, found)

    images = Counted(10)
    images.images[6] = 0
    job = extraction(tmp_path, 10)
    job.start()
    with pytest.raises(ValueError, match="the model's embedding of image 6 is not finite"):
        job.work(NetworkEmbedder(Fragile().eval(), Pixels()), images)
    assert job.done() == 4
