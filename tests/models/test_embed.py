"""Embedding images: batching, mirror images, sizes, modes."""

import threading
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from sphereface2.data.transforms import Preprocessing
from sphereface2.models.embedder import NetworkEmbedder, PixelEmbedder

Pixels = partial(Preprocessing, input_size=12)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.output = nn.Linear(4 * 10 * 10, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.norm(self.convolution(images)).flatten(1)
        embeddings: torch.Tensor = self.output(features)
        return embeddings


def pictures(count: int = 7, size: int = 12) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_batches_equal_one_image_at_a_time(batch_size: int, flip: bool) -> None:
    net, images = Net().eval(), pictures()
    found = NetworkEmbedder(net, Pixels(), batch_size=batch_size, flip=flip).embed(images)
    assert found.dtype == np.float32
    assert found.shape == (7, 5)
    for image, embedding in zip(images, found, strict=True):
        with torch.no_grad():
            expected = net(Pixels().to_tensor(torch.from_numpy(image[None])))[0]
            if flip:
                mirrored = np.ascontiguousarray(image[:, ::-1])
                expected = expected + net(Pixels().to_tensor(torch.from_numpy(mirrored[None])))[0]
        np.testing.assert_allclose(embedding, expected.numpy(), atol=1e-5)


def test_a_mirrored_image_has_the_same_embedding() -> None:
    net, images = Net(), pictures()
    np.testing.assert_allclose(
        NetworkEmbedder(net, Pixels()).embed(images),
        NetworkEmbedder(net, Pixels()).embed(images[:, :, ::-1]),
        atol=1e-5,
    )


def test_a_network_in_training_embeds_as_it_does_in_evaluation() -> None:
    net, images = Net(), pictures()
    expected = NetworkEmbedder(net.eval(), Pixels()).embed(images)
    assert np.array_equal(NetworkEmbedder(net.train(), Pixels()).embed(images), expected)


def test_every_mode_and_statistic_is_left_as_it_was() -> None:
    net = Net().train()
    net.norm.eval()  # a frozen part of a network in training
    before = {name: value.clone() for name, value in net.state_dict().items()}
    NetworkEmbedder(net, Pixels()).embed(pictures())
    assert net.training
    assert net.output.training
    assert not net.norm.training
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


def test_modes_come_back_after_a_failure() -> None:
    net = Net().train()
    with pytest.raises(RuntimeError):
        NetworkEmbedder(net, Pixels(input_size=8)).embed(pictures(size=8))
    assert net.training
    assert net.norm.training


def test_other_sizes_are_scaled_to_the_input_size() -> None:
    net = Net()
    large = pictures(size=36)
    # Each pixel is the mean of 3 × 3; a bilinear resize would look at 4 of the 9.
    small = np.rint(large.reshape(7, 12, 3, 12, 3, 3).mean(axis=(2, 4))).astype(np.uint8)
    np.testing.assert_allclose(
        NetworkEmbedder(net, Pixels()).embed(large),
        NetworkEmbedder(net, Pixels()).embed(small),
        atol=0.01,
    )


def test_progress_counts_images() -> None:
    seen: list[tuple[int, int]] = []
    NetworkEmbedder(Net(), Pixels(), batch_size=3).embed(
        pictures(), progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(3, 7), (6, 7), (7, 7)]


class Meeting:
    """Images whose readers wait until `readers` of them read at once; fewer never get one."""

    def __init__(self, images: npt.NDArray[np.uint8], *, readers: int) -> None:
        self.images = images
        self.barrier = threading.Barrier(readers, timeout=20)
        self.met = False

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int, /) -> npt.NDArray[np.uint8]:
        if not self.met and threading.current_thread() is not threading.main_thread():
            self.barrier.wait()
            self.met = True
        image: npt.NDArray[np.uint8] = self.images[index]
        return image

    def prepare(self, *, workers: int, progress: object) -> None:
        """There is nothing to prepare."""


def test_workers_read_at_the_same_time() -> None:
    images = Meeting(pictures(), readers=3)
    found = NetworkEmbedder(Net().eval(), Pixels(), workers=3).embed(images)
    assert (images.met, found.shape) == (True, (7, 5))


def test_raw_pixels_lose_their_mean_and_nothing_else() -> None:
    images = pictures()
    found = PixelEmbedder(12).embed(images)
    assert found.shape == (7, 12 * 12 * 3)
    np.testing.assert_allclose(found.mean(axis=1), 0, atol=1e-4)
    flat = images.reshape(7, -1).astype(np.float32)
    np.testing.assert_allclose(found, flat - flat.mean(axis=1, keepdims=True), atol=1e-3)
    assert PixelEmbedder(6).embed(images).shape == (7, 6 * 6 * 3)


def test_unusable_images_are_refused_by_number() -> None:
    with pytest.raises(ValueError, match="no images"):
        NetworkEmbedder(Net(), Pixels()).embed(pictures(0))
    with pytest.raises(ValueError, match="no images"):
        PixelEmbedder(6).embed(pictures(0))
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        NetworkEmbedder(Net(), Pixels(), batch_size=0)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        NetworkEmbedder(Net(), Pixels(), workers=0)
    grey = [*pictures(), pictures()[0][:, :, 0]]
    with pytest.raises(ValueError, match=r"image 7 must be uint8 .* \(12, 12\)"):
        NetworkEmbedder(Net(), Pixels()).embed(grey)
