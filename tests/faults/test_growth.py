"""What counts as growth."""

import pytest

from faults.growth import Sample, grown

STEADY = [Sample(float(n), 100.0 + n % 2, 20, 50) for n in range(40)]


def test_a_steady_process_has_not_grown() -> None:
    assert grown(STEADY) == []
    warming_up = [Sample(0.0, 10.0, 3, 1)] * 10 + STEADY[10:]
    assert grown(warming_up) == []
    assert grown(STEADY[:3]) == ["it ended too early to say"]


@pytest.mark.parametrize("what", ["megabytes", "descriptors", "files"])
def test_a_leak_is_found(what: str) -> None:
    leaking = [
        Sample(**{**vars(each), what: getattr(each, what) + number // 4})
        for number, each in enumerate(STEADY)
    ]
    (found,) = grown(leaking)
    assert found.startswith(f"{what} grew from ")
