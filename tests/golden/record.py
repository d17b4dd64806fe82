"""Write down the golden numbers: make record-golden [CASES="CASE..."]

Do this only for numbers that are meant to change, and say why in the commit.
"""

import json
import platform
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

from tests.golden.cases import cases

NUMBERS = Path(__file__).parent / "numbers"


def machine() -> str:
    """What decides the last bits: the library, and the instructions of the processor."""
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {instructions} torch {torch.__version__}"


def vendor() -> str:
    """Who made the processor, as Linux reports it."""
    with suppress(FileNotFoundError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("vendor_id"):
                return line.partition(":")[2].strip()
    return platform.processor()


def main() -> None:
    torch.set_num_threads(1)
    wanted = set(sys.argv[1:])
    for name, case in cases():
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as place:
            found = case(Path(place))
        NUMBERS.mkdir(exist_ok=True)
        content = json.dumps({"machine": machine(), "vendor": vendor(), "numbers": found}, indent=1)
        (NUMBERS / f"{name}.json").write_text(content + "\n", encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main()
