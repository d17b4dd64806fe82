"""Some of the kills of `python -m faults.kills`, of fast tasks; and losses that it must notice.

In a process of its own: the program forks, and this one may have threads by now.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from faults.outcomes import Outcomes
from faults.tasks import write_noise

# Two tasks that resume; then one that cannot, and a file that is not there undisturbed.
KILLS = """
import random, signal, sys
from dataclasses import replace
from pathlib import Path
from faults.kills import SCENES, Bench, try_scene
from faults.forks import Ended
from faults.outcomes import Outcomes
from faults.tasks import TASKS

work = Path(sys.argv[1])
for name in ("convert", "train"):
    try_scene(SCENES[name], Outcomes(work / "kills.json"), work, quick=True)
stubborn = replace(TASKS["convert"], again=lambda folder: ("convert", "nowhere", "noise.rec"))
bench = Bench(stubborn, work / "left", work / "materials")
bench.rehearse()
met, lost = bench.meet(signal.SIGKILL, random.Random(0))
assert met and lost[0].startswith("does not resume: "), lost
bench.task = TASKS["convert"]
bench.files.remove("noise.idx")
met, lost = bench.meet(signal.SIGKILL, random.Random(0))
assert met and lost == ["left behind: noise.idx"], lost
"""


@pytest.mark.usefixtures("quick_processes")
def test_what_is_killed_resumes_to_the_same_bits_and_what_is_lost_is_noticed(
    tmp_path: Path,
) -> None:
    write_noise(tmp_path / "materials")  # faces and a gallery are for other tasks
    (tmp_path / "materials" / "complete").touch()
    words = ["-c", KILLS, str(tmp_path)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = Outcomes(tmp_path / "kills.json")
    assert outcomes.losses() == []
    assert [row.tried for row in outcomes.rows()] == [3, 1, 1, 2, 1, 1]
