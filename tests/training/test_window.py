"""The numbers of a record: means over its steps, and shares of its time."""

from sphereface2.training.events import Window


def test_a_window_holds_means_over_its_steps_and_shares_of_its_time() -> None:
    window = Window()
    window.add(3.0, images=10, seconds=2.0, wait_seconds=0.5)
    window.add(5.0, images=30, seconds=6.0, wait_seconds=1.5)
    assert (window.mean_loss, window.images_per_second, window.data_wait) == (4.0, 5.0, 0.25)


def test_after_a_resume_the_loss_continues_and_the_time_starts_again() -> None:
    window = Window(loss=10.0, steps=4)
    window.add(5.0, images=8, seconds=2.0, wait_seconds=1.0)
    assert (window.mean_loss, window.images_per_second, window.data_wait) == (3.0, 4.0, 0.5)
