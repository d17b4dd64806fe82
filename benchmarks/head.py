"""The classifier layer against its contenders and the physical limit.

    python -m benchmarks.head              # everything, to docs/performance/head.json and .png
    python -m benchmarks.head classes      # one part: classes, sampling, ranks, large
    python -m benchmarks.head --beside 1   # 10,000 to 100,000 classes beside a busy process
    python -m benchmarks.head --device cuda    # on a GPU, to head-cuda.json in the same folder

One process a contender, a step of each in turn, the median of the repeats; ratios are taken within
one such run. The machine should be idle otherwise.
"""

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.projection import project
from benchmarks.workers import Measured, compare
from sphereface2.experiments.paper.parallel import describe_machine

OUTPUT = Path("docs/performance")
OURS = ("sphereface2-c", "cosface", "sphereface2-c, compiled", "cosface, compiled")
DENSE = ("dense sphereface2", "dense cosface", "dense arcface")


def classes_part(repeats: int) -> list[Measured]:
    """Ours, the dense ones and the limit over the number of classes, on two threads."""
    results = []
    for classes in (10_000, 100_000):
        names = ("limit", *OURS, *DENSE)
        results += _show(
            compare(names, dim=512, classes=classes, batch=256, threads=2, repeats=repeats)
        )
    # A million: the dense ones take 12 GB each, so each meets the limit in a run of its own.
    results += _show(
        compare(
            ("limit", *OURS[:2]),
            dim=512, classes=1_000_000, batch=256, threads=2, repeats=max(2, repeats // 3),
        )
    )  # fmt: skip
    for name in DENSE[:2]:
        run = compare(("limit", name), dim=512, classes=1_000_000, batch=256, threads=2, repeats=2)
        results += _show(run)[1:]
    return results


def sampling_part(repeats: int) -> list[Measured]:
    """A tenth of a million classes a step, against all of them."""
    names = ("sphereface2-c", "sphereface2-c, sample_rate 0.1")
    return _show(
        compare(
            names, dim=512, classes=1_000_000, batch=256, threads=2, repeats=max(3, repeats // 2)
        )
    )


def large_part(repeats: int) -> list[Measured]:
    """Ten million classifiers on one machine."""
    names = ("sphereface2-c, sample_rate 0.01",)
    return _show(compare(names, dim=128, classes=10_000_000, batch=256, threads=2, repeats=repeats))


def ranks_part(repeats: int) -> list[Measured]:
    """One and two ranks of one thread each: the paper's parallelisation figure."""
    results = []
    for classes in (50_000, 200_000):
        run = compare(
            ("sphereface2-c", "cosface"),
            dim=512, classes=classes, batch=256, threads=1, repeats=repeats, ranks=(1, 2),
        )  # fmt: skip
        results += _show(run)
    return results


def beside(count: int, repeats: int) -> list[Measured]:
    """Ours and the limit, equally disturbed by `count` busy processes; printed, not stored."""
    results = []
    for classes in (10_000, 40_000, 100_000):
        names = ("limit", *OURS)
        run = compare(
            names, dim=512, classes=classes, batch=256, threads=2, repeats=repeats, beside=count
        )
        results += _show(run)
    return results


def gpu(repeats: int) -> None:
    """Ours, the dense ones and the limit on a GPU, one after another, for one has to hold them."""
    results = []
    for classes in (10_000, 100_000, 1_000_000):
        for name in ("limit", *OURS, *(DENSE if classes < 1_000_000 else ())):
            run = compare(
                (name,), dim=512, classes=classes, batch=256, threads=2, repeats=repeats,
                device="cuda",
            )  # fmt: skip
            results += _show(run)
    stored = {"machine": describe_machine("cuda"), "parts": [asdict(r) for r in results]}
    (OUTPUT / "head-cuda.json").write_text(json.dumps(stored, indent=1) + "\n")


PARTS = {
    "classes": classes_part,
    "sampling": sampling_part,
    "ranks": ranks_part,
    "large": large_part,
}


def _show(results: Sequence[Measured]) -> list[Measured]:
    first = results[0]
    print(f"\n{first.classes:,} classes, {first.dim}-D, batch {first.batch}")
    limit = next((r.seconds for r in results if r.name == "limit"), None)
    ours = next((r.seconds for r in results if r.name == "sphereface2-c"), None)
    columns = ("ranks", "s/step", "images/s", "of limit", "ours is", "extra MB")
    print(" " * 32 + "".join(f"{column:>10}" for column in columns))
    for r in results:
        cells = [
            str(r.ranks),
            f"{r.seconds:.3f}",
            f"{r.images_per_second:.0f}",
            f"{limit / r.seconds:.0%}" if limit else "",
            f"{r.seconds / ours:.2f}x" if ours else "",
            f"{r.extra_mb:.0f}",
        ]
        print(f"{r.name:32}" + "".join(f"{cell:>10}" for cell in cells), flush=True)
    return list(results)


def _plot(parts: Mapping[str, Sequence[Measured]], path: Path) -> None:
    """Images per second over the number of classes, and over ranks."""
    from matplotlib.figure import Figure

    from sphereface2.reporting.style import method_colour

    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in dict.fromkeys(r.name for r in parts["classes"]):
        points = [(r.classes, r.images_per_second) for r in parts["classes"] if r.name == name]
        dense = name.startswith("dense ")
        method = name.removeprefix("dense ").split(",")[0].replace("sphereface2", "sphereface2-c")
        colour = "0.35" if name == "limit" else method_colour(method.replace("-c-c", "-c"))
        style = ":" if name == "limit" else "--" if dense else "-." if "," in name else "-"
        left.plot(*zip(*points, strict=True), style, marker="o", color=colour, label=name)
    left.set(xscale="log", yscale="log", xlabel="classes", ylabel="images/s")
    left.set_title("one process, two threads")
    left.legend(fontsize=8)
    for name in ("sphereface2-c", "cosface"):
        for classes, style in ((50_000, "--"), (200_000, "-")):
            points = [
                (r.ranks, r.images_per_second)
                for r in parts["ranks"]
                if r.name == name and r.classes == classes
            ]
            label = f"{name}, {classes:,} classes"
            right.plot(
                *zip(*points, strict=True),
                style,
                marker="o",
                color=method_colour(name),
                label=label,
            )
    right.set(xticks=[1, 2], xlabel="ranks, one thread each", ylabel="images/s", ylim=(0, None))
    right.set_title("classes shared out over ranks")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--beside", type=int, help="measure beside this many busy processes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    if arguments.device == "cuda":
        if not torch.cuda.is_available():
            parser.error("--device cuda: this machine offers no CUDA device")
        gpu(arguments.repeats)
        return
    if arguments.beside is not None:
        beside(arguments.beside, arguments.repeats)
        return
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part '{unknown[0]}' (known: {', '.join(PARTS)})")
    path = OUTPUT / "head.json"
    stored = json.loads(path.read_text()) if path.exists() else {"parts": {}}
    for part in arguments.parts or PARTS:
        stored["parts"][part] = [asdict(r) for r in PARTS[part](arguments.repeats)]
        stored["machine"] = {
            **describe_machine(),
            "python": platform.python_version(),
        }
        path.write_text(json.dumps(stored, indent=1) + "\n")
    parts = {name: [Measured(**r) for r in part] for name, part in stored["parts"].items()}
    if set(parts) >= {"classes", "ranks"}:
        _plot(parts, OUTPUT / "head.png")
        print(project([r for r in parts["ranks"] if r.ranks == 2 and r.classes == 200_000]))


if __name__ == "__main__":
    main()
