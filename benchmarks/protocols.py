"""IJB-C and MegaFace at full size on generated embeddings: time, memory, and the known truth.

    python -m benchmarks.protocols                   # both; about 3 GB in the temporary folder
    python -m benchmarks.protocols megaface --scale 0.1
    python -m benchmarks.protocols ijb --output docs/performance/protocols.json

Each protocol runs in a process of its own, whose peak resident memory (pages of mapped files
included) is reported. MegaFace is measured against the bare matrix product of the same sizes, one
after the other in turn; the ratio is that of the medians.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generate.ijb import EMBEDDINGS, IJBC, generate_ijb
from benchmarks.generate.megaface import MEGAFACE, generate_megaface
from benchmarks.generate.truth import SphereCosine, Truth, read_truth
from sphereface2.evaluation.protocols.ijb import evaluate_ijb
from sphereface2.evaluation.protocols.ijb_files import read_ijb
from sphereface2.evaluation.protocols.megaface import megaface, read_megaface
from sphereface2.evaluation.thresholds import Measure
from sphereface2.models.embedder import unit_rows

Numbers = dict[str, Any]
LIMITS = {
    "1:1 seconds": 60.0,
    "1:N seconds": 60.0,
    "ratio to the bare product": 1.3,
    "peak GB": 4.0,
}


def measure_ijb(root: Path, repeats: int) -> Numbers:
    """Reading the lists, 1:1 and 1:N from the embeddings of the images, each with its pooling."""
    start = time.perf_counter()
    ijb = read_ijb(root)
    reading = time.perf_counter() - start
    embeddings = np.load(root / EMBEDDINGS, mmap_mode="r")
    seconds: dict[str, list[float]] = {"1:1 seconds": [], "1:N seconds": []}
    found: list[Measure] = []
    for _ in range(repeats):
        for name, parts in (
            ("1:1 seconds", ("1:1",)),
            ("1:N seconds", ("1:N standard", "1:N legacy")),
        ):
            start = time.perf_counter()
            result = evaluate_ijb(ijb, embeddings, parts=parts)
            seconds[name].append(time.perf_counter() - start)
            if len(seconds[name]) == 1:
                found += result.measures
    return {
        "images": len(ijb),
        "pairs": len(ijb.pairs),
        "reading the lists, seconds": reading,
        **{name: statistics.median(times) for name, times in seconds.items()},
        "peak GB": _peak(),
        "truth": _check(found, read_truth(root), legacy=True),
    }


def measure_megaface(root: Path, repeats: int) -> Numbers:
    """The clean protocol, and the bare product of the same sizes, in turn."""
    size = int(next((root / "templatelists").glob("megaface*")).name.rsplit("_", 2)[1])
    listed = read_megaface(
        root, size=size, probe_noises=root / "facescrub_noises.txt",
        distractor_noises=root / "megaface_noises.txt",
    )  # fmt: skip
    probes, distractors = (
        np.load(root / f"{kind}.npy", mmap_mode="r") for kind in ("facescrub", "megaface")
    )
    bare, ours = [], []
    work = []  # processor seconds, which a busy machine disturbs less
    for _ in range(repeats):
        start, used = time.perf_counter(), time.process_time()
        _product(probes, distractors)
        bare.append(time.perf_counter() - start)
        middle = time.process_time()
        start = time.perf_counter()
        result = megaface(
            probes, listed.people, distractors, noisy_probes=listed.noisy_probes,
            noisy_distractors=listed.noisy_distractors,
        )  # fmt: skip
        ours.append(time.perf_counter() - start)
        work.append((time.process_time() - middle) / (middle - used))
    return {
        "probes": len(probes),
        "distractors": len(distractors),
        "bare product, seconds": statistics.median(bare),
        "identification and verification, seconds": statistics.median(ours),
        "ratio to the bare product": statistics.median(ours) / statistics.median(bare),
        "ratio in processor time": statistics.median(work),
        "peak GB": _peak(),
        "truth": _check(result.measures, read_truth(root), legacy=False),
    }


def _product(probes: np.ndarray, distractors: np.ndarray, *, block: int = 8_192) -> None:
    unit = unit_rows(probes, source="probes")
    out = np.empty((len(unit), block), dtype=np.float32)
    for start in range(0, len(distractors) - block + 1, block):
        np.matmul(unit, distractors[start : start + block].T, out=out)
    rest = len(distractors) % block
    if rest:
        np.matmul(unit, distractors[-rest:].T)


def _check(measures: Sequence[Measure], truth: Truth, *, legacy: bool) -> list[Numbers]:
    """Each rate beside what is expected of it; the slack is a second half width of its interval.

    At a threshold the expectation is taken there, so that chance in the few impostors that set the
    threshold is not mistaken for an error; the false rate reached is checked by itself.
    """
    law = SphereCosine(truth.dim)
    rows: list[Numbers] = []
    ranks_seen = 0
    for measure in measures:
        name = measure.name
        if name == "rank 1" and legacy:
            name = "standard rank 1" if not ranks_seen else "legacy rank 1"
            ranks_seen += 1
        elif name.startswith("TPIR"):
            name = f"standard {name}"
        elif name.startswith("rank 1, "):
            name = _size_name(int(name.split()[2].replace(",", "")), truth)
        if name not in truth.expected or not measure.resolved:
            continue
        expected = truth.expected[name]
        interval = measure.rate.interval
        half = (interval.high - interval.low) / 2
        row: Numbers = {"name": name, "measured": measure.rate.value, "expected": expected}
        if measure.at is not None and name.startswith(("TAR", "TPR")):
            there = float(np.interp(measure.at.threshold, truth.thresholds, truth.accepted))
            false = float(law.above(measure.at.threshold)) * measure.at.impostors
            reached = measure.at.reached * measure.at.impostors
            row |= {"expected there": there, "false accepts": reached, "false expected": false}
            # Templates of one person are not independent: three times the Poisson deviation of 4.
            row["agrees"] = abs(measure.rate.value - there) <= 2 * half + 1e-3 and (
                abs(reached - false) <= 12 * (false + 1) ** 0.5
            )
        else:
            row["agrees"] = abs(measure.rate.value - expected) <= 2 * half + 5e-3
        rows.append(row)
    return rows


def _size_name(count: int, truth: Truth) -> str:
    """The expected number for about so many distractors; a few noisy ones have been taken out."""
    for name in truth.expected:
        if name.startswith("rank 1, first ") and 0.99 < count / int(name.split()[-1]) <= 1.0:
            return name
    return "rank 1"


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _child(
    pipe: Connection, work: Callable[[Path, int], Numbers], root: Path, repeats: int
) -> None:
    pipe.send(work(root, repeats))


def _in_a_process(work: Callable[[Path, int], Numbers], root: Path, repeats: int) -> Numbers:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_child, args=(there, work, root, repeats))
    process.start()
    there.close()
    try:
        numbers: Numbers = here.recv()
    except EOFError:
        raise SystemExit("the measured process failed; see above") from None
    process.join()
    return numbers


def _show(title: str, numbers: Mapping[str, Any]) -> None:
    print(f"\n{title}")
    for name, value in numbers.items():
        if name == "truth":
            continue
        limit = LIMITS.get(name)
        text = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
        verdict = (
            "" if limit is None else f"   (at most {limit:g}{'' if value <= limit else ': MISSED'})"
        )
        print(f"  {name:44}{text:>14}{verdict}")
    for row in numbers["truth"]:
        extra = ""
        if "false accepts" in row:
            extra = (
                f"  there {row['expected there']:.2%}, false accepts {row['false accepts']:.0f} of "
                f"{row['false expected']:.0f} expected"
            )
        print(
            f"  {row['name']:30}{row['measured']:>9.2%} expected {row['expected']:.2%}{extra}"
            f"{'' if row['agrees'] else '  DISAGREES'}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", help="of ijb, megaface; both if none is named")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    known = {
        "ijb": ("IJB-C", partial(generate_ijb, sizes=IJBC), measure_ijb),
        "megaface": ("MegaFace", partial(generate_megaface, sizes=MEGAFACE), measure_megaface),
    }
    unknown = [part for part in arguments.parts if part not in known]
    if unknown:
        parser.error(f"unknown part '{unknown[0]}' (known: {', '.join(known)})")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(arguments.threads)  # for the processes to come
    stored: Numbers = {}
    for part in arguments.parts or known:
        title, generate, work = known[part]
        with tempfile.TemporaryDirectory(prefix=f"sphereface2-{part}-") as folder:
            start = time.perf_counter()
            generate(Path(folder), scale=arguments.scale)
            print(f"{title}: generated in {time.perf_counter() - start:.0f} s", flush=True)
            stored[part] = _in_a_process(work, Path(folder), arguments.repeats)
        _show(f"{title}, scale {arguments.scale:g}, {arguments.threads} threads", stored[part])
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
