"""Synthetic people as images by number and as a training source.

Pictures are rendered when asked for, or all of them up front. Where the environment names a folder
they are kept on disk, so that many runs over the same people, as a sweep's, render them once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, lru_cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.files import file_lock, replacing
from sphereface2.rendering import renderer
from sphereface2.rendering.person import (
    EVERYDAY,
    Conditions,
    Person,
    Setting,
    draw_conditions,
    draw_person,
)
from sphereface2.rendering.renderer import render
from sphereface2.rendering.surface import SIZE
from sphereface2.workers import Progress, in_processes, unseen

FOLDER_VARIABLE = "SPHEREFACE2_RENDERED"
"""The environment variable with the folder in which rendered pictures are kept."""


def cached_or_rendered(
    description: object, shape: tuple[int, ...], render: Callable[[], NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """What `render` gives for a description; kept on disk where a folder is named for it."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return render()
    # The renderer's own code is part of the key: changed code never meets old pictures.
    key = hashlib.sha256(f"{description!r}\n{renderer_version()}".encode()).hexdigest()[:20]
    path = Path(folder) / f"{key}.npy"
    # One process renders, the others wait for it.
    with file_lock(path.with_suffix(".lock")):
        found = _load(path, shape)
        if found is not None:
            return found
        pictures = render()
        with replacing(path) as made, made.open("wb") as file:
            np.save(file, pictures)
    return pictures


def _load(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """The pictures in a file, mapped so that processes share their memory."""
    try:
        pictures = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    fits = pictures.dtype == np.uint8 and pictures.shape == shape
    return pictures if fits else None


@cache
def renderer_version() -> str:
    """Stands for how people are drawn now: a digest of the renderer's code and cv2's version."""
    code = hashlib.sha256(cv2.__version__.encode())
    for path in sorted(Path(renderer.__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()


# Pictures of synthetic people by number: rendered when asked for, or all of them up front.

FIRST_UNSEEN = 1_000_000
"""People from this number on are for verification, those below for training."""


@lru_cache(maxsize=64)
def _person(seed: int, identity: int) -> Person:
    return draw_person(seed, identity)


def sample_conditions(
    identity: int, sample: int, *, seed: int = 0, setting: Setting = EVERYDAY
) -> Conditions:
    """Under which conditions picture number `sample` of a person is taken."""
    return draw_conditions(_person(seed, identity), seed, identity, sample, setting)


def render_sample(
    identity: int,
    sample: int,
    *,
    image_size: int = SIZE,
    seed: int = 0,
    setting: Setting = EVERYDAY,
) -> NDArray[np.uint8]:
    """Picture number `sample` of a person, uint8 RGB."""
    conditions = sample_conditions(identity, sample, seed=seed, setting=setting)
    return render(_person(seed, identity), conditions, size=image_size)


class SyntheticImages:
    """Pictures of consecutive people; picture k of each is taken in setting k."""

    def __init__(
        self,
        people: int,
        settings: Sequence[Setting],
        *,
        image_size: int,
        seed: int,
        first_person: int,
    ) -> None:
        self.people = people
        self.settings = tuple(settings)
        self.image_size = image_size
        self.seed = seed
        self.first_person = first_person
        self._rendered: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return self.people * len(self.settings)

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        identity, sample = self._place(index)
        if self._rendered is not None:
            return np.asarray(self._rendered[index])
        return render_sample(
            identity,
            sample,
            image_size=self.image_size,
            seed=self.seed,
            setting=self.settings[sample],
        )

    def conditions(self, index: int) -> Conditions:
        """Under which conditions image `index` is taken."""
        identity, sample = self._place(index)
        return sample_conditions(identity, sample, seed=self.seed, setting=self.settings[sample])

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        """Render everything into memory; with two or more `workers`, in that many processes."""
        if self._rendered is not None:
            return
        description = (self.people, self.settings, self.image_size, self.seed, self.first_person)
        shape = (len(self), self.image_size, self.image_size, 3)
        self._rendered = cached_or_rendered(
            description, shape, lambda: self._render_all(shape, workers, progress)
        )

    def _render_all(
        self, shape: tuple[int, ...], workers: int, progress: Progress
    ) -> NDArray[np.uint8]:
        samples = len(self.settings)
        rendered = np.empty(shape, dtype=np.uint8)
        people = range(self.people)
        results = in_processes(self._render_person, people, workers=min(workers, len(people)))
        with closing(results):
            for done, (person, pictures) in enumerate(results, start=1):
                rendered[person * samples : (person + 1) * samples] = pictures
                progress(done * samples, len(self))
        return rendered

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)} synthetic images")
        person, sample = divmod(index, len(self.settings))
        return self.first_person + person, sample

    def _render_person(self, person: int) -> NDArray[np.uint8]:
        start = person * len(self.settings)
        return np.stack([self[start + sample] for sample in range(len(self.settings))])


class SyntheticFaces:
    """A training source of synthetic people, the same number of pictures of each."""

    def __init__(
        self,
        *,
        people: int = 500,
        images_per_person: int = 20,
        image_size: int = SIZE,
        seed: int = 0,
        first_person: int = 0,
    ) -> None:
        for name, value, least in (
            ("people", people, 2),
            ("images_per_person", images_per_person, 1),
            ("image_size", image_size, 8),
            ("seed", seed, 0),
            ("first_person", first_person, 0),
        ):
            if value < least:
                raise ValueError(f"synthetic data: {name} must be at least {least}, got {value}")
        if first_person + people > FIRST_UNSEEN:
            raise ValueError(
                f"synthetic data: first_person + people must not exceed {FIRST_UNSEEN}, got "
                f"{first_person + people}; people from there on are kept for verification"
            )
        self._images = SyntheticImages(
            people,
            [EVERYDAY] * images_per_person,
            image_size=image_size,
            seed=seed,
            first_person=first_person,
        )
        self.num_classes = people
        self.image_size = image_size
        self.labels = np.repeat(np.arange(people, dtype=np.int64), images_per_person)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        return self._images[index], int(self.labels[index])

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        """Render everything into memory; with two or more `workers`, in that many processes."""
        self._images.prepare(workers=workers, progress=progress)
