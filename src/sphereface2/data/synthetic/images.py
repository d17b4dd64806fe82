"""Pictures of synthetic people by number: rendered when asked for, or all of them up front."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.source import Progress
from sphereface2.data.synthetic.kept import kept_or_rendered
from sphereface2.data.synthetic.person import (
    EVERYDAY,
    Conditions,
    Person,
    Setting,
    draw_conditions,
    draw_person,
)
from sphereface2.data.synthetic.renderer import render
from sphereface2.data.synthetic.surface import SIZE


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
    picture = render(_person(seed, identity), conditions)
    if image_size == SIZE:
        return picture
    # Always rendered at one size, so that every size shows the same content.
    way = cv2.INTER_AREA if image_size < SIZE else cv2.INTER_LINEAR
    resized = cv2.resize(picture, (image_size, image_size), interpolation=way)
    return np.asarray(resized, dtype=np.uint8)


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

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Render everything into memory; with two or more `workers`, in that many processes."""
        if self._rendered is not None:
            return
        description = (self.people, self.settings, self.image_size, self.seed, self.first_person)
        shape = (len(self), self.image_size, self.image_size, 3)
        self._rendered = kept_or_rendered(
            description, shape, lambda: self._render_all(shape, workers, progress)
        )

    def _render_all(
        self, shape: tuple[int, ...], workers: int, progress: Progress | None
    ) -> NDArray[np.uint8]:
        samples = len(self.settings)
        rendered = np.empty(shape, dtype=np.uint8)
        for done, (person, pictures) in enumerate(self._render_people(workers), start=1):
            rendered[person * samples : (person + 1) * samples] = pictures
            if progress is not None:
                progress(done * samples, len(self))
        return rendered

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)} synthetic images")
        person, sample = divmod(index, len(self.settings))
        return self.first_person + person, sample

    def _render_people(self, workers: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        if workers < 2 or self.people < 2:
            for person in range(self.people):
                yield person, self._render_person(person)
            return
        # Spawned, not forked: the parent may hold threads of torch or OpenCV.
        context = multiprocessing.get_context("spawn")
        count = min(workers, self.people)
        with ProcessPoolExecutor(count, mp_context=context, initializer=_one_thread) as pool:
            # A bounded queue: finished pictures must not pile up twice in memory.
            waiting: dict[Future[NDArray[np.uint8]], int] = {}
            upcoming = iter(range(self.people))
            for person in upcoming:
                waiting[pool.submit(_render_person, self, person)] = person
                if len(waiting) >= 4 * count:
                    break
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    following = next(upcoming, None)
                    if following is not None:
                        waiting[pool.submit(_render_person, self, following)] = following
                    yield waiting.pop(future), future.result()

    def _render_person(self, person: int) -> NDArray[np.uint8]:
        start = person * len(self.settings)
        return np.stack([self[start + sample] for sample in range(len(self.settings))])


def _one_thread() -> None:
    cv2.setNumThreads(1)


def _render_person(images: SyntheticImages, person: int) -> NDArray[np.uint8]:
    return images._render_person(person)
