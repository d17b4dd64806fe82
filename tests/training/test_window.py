"""The numbers of a record: means over its steps, and shares of its time."""

import pytest

from sphereface2.training.events import Window


def test_a_record_holds_means_over_its_steps_and_shares_of_its_time() -> None:
    window = Window()
    window.add(3.0, images=10, seconds=2.0, wait_seconds=0.5)
    window.add(5.0, images=30, seconds=6.0, wait_seconds=1.5)
    record = window.record(
        step=7, epoch=1.5, learning_rate=0.1, gradient_norm=2.0, head={"active": 1.0}, bad_images=3
    )
    assert (record.step, record.epoch, record.learning_rate) == (7, 1.5, 0.1)
    assert (record.gradient_norm, record.head, record.bad_images) == (2.0, {"active": 1.0}, 3)
    assert record.loss == pytest.approx(4.0)
    assert record.images_per_second == pytest.approx(5.0)
    assert record.data_wait == pytest.approx(0.25)


def test_after_a_resume_the_loss_goes_on_and_the_time_begins_again() -> None:
    window = Window(loss=10.0, steps=4)
    window.add(5.0, images=8, seconds=2.0, wait_seconds=1.0)
    record = window.record(
        step=5, epoch=1.0, learning_rate=0.1, gradient_norm=1.0, head={}, bad_images=0
    )
    assert record.loss == pytest.approx(3.0)
    assert (record.images_per_second, record.data_wait) == (4.0, 0.5)
