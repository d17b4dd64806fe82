"""The pictures of a report."""

import numpy as np

from sphereface2.data.sources.synthetic import SyntheticFaces
from sphereface2.reporting.pages.verification import people_sheet


def test_a_row_is_a_person_and_a_column_an_image() -> None:
    source = SyntheticFaces(people=9, images_per_person=3, image_size=48)
    sheet = people_sheet(source, people=[4, 8], samples=4, size=48, gap=1)
    assert sheet.shape == (97, 195, 3)
    assert np.array_equal(sheet[49:, 98:146], source[8 * 3 + 2][0])
    assert (sheet[:, 147:] == 255).all()  # nobody has a fourth image
    assert people_sheet(source, samples=1, size=16, gap=0).shape == (7 * 16, 16, 3)
