"""Photos for the detectors: rendered faces, which they find as they find real ones."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.data.sources.synthetic import SyntheticFaces


@pytest.fixture(scope="session")
def rendered() -> list[NDArray[np.uint8]]:
    """Six people, 112×112, in place up to their pose."""
    faces = SyntheticFaces(people=6, images_per_person=1)
    return [faces[index][0] for index in range(6)]
