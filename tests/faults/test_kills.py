"""Some of the kills of `python -m faults.kills`, of fast tasks; and losses that it must notice.

In processes of their own: the program forks, and this one may have threads by now.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from faults.outcomes import Outcomes

# A task that cannot resume, and a file that is not there undisturbed.
BROKEN = """
import signal, sys
from dataclasses import replace
from pathlib import Path
from faults.kills import Bench
from faults.tasks import TASKS, make_materials

work = Path(sys.argv[1])
stubborn = replace(TASKS["convert"], again=lambda folder: ("convert", "nowhere", "noise.rec"))
bench = Bench(stubborn, work / "left", make_materials(work / "materials"))
bench.rehearse()
met, lost = bench.trial(signal.SIGKILL, lambda: 0.0, "the process")
assert met and lost[0].startswith("does not resume: "), lost
bench.task = TASKS["convert"]
bench.files.remove("noise.idx")
met, lost = bench.trial(signal.SIGKILL, lambda: 0.0, "the process")
assert met and lost == ["left behind: noise.idx"], lost
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


def test_what_is_killed_resumes_to_the_same_bits(work: Path) -> None:
    words = ["-m", "faults.kills", "--quick", "--work", str(work), "convert", "train"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = Outcomes(work / "kills.json")
    assert outcomes.losses() == []
    assert [row.tried for row in outcomes.rows()] == [3, 1, 1] * 2


def test_what_is_lost_is_noticed(work: Path) -> None:
    words = ["-c", BROKEN, str(work)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
