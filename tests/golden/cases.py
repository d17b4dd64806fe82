"""What users see, as numbers: each case runs real commands on small made data and reads the result.

Everything goes through the command line and the files that it writes, so that the inside of the
package can move without touching this file.
"""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from typer.testing import CliRunner

from benchmarks.generate.ijb import IJBC, generate_ijb
from benchmarks.generate.megaface import generate_megaface
from sphereface2 import build_head
from sphereface2.cli import app

Numbers = Any
Case = Callable[[Path], Numbers]

TINY = {
    "data": {"name": "synthetic", "people": 8, "images_per_person": 4, "image_size": 32},
    "backbone": {
        "name": "sfnet4",
        "width": 4,
        "input_size": 32,
        "embedding_dim": 8,
        "batch_norm": True,
    },
    "head": {"name": "sphereface2-c"},
    "training": {
        "steps": 10,
        "batch_size": 8,
        "workers": 0,
        "log_every": 1,
        "evaluate_every": 0,
    },
    "optimizer": {"learning_rate": 0.05},
    "device": "cpu",
}
PAIRS = [{"name": "synthetic", "people": 20, "pairs": 40, "image_size": 32}]

# Backbones at the least size that keeps their layers: the deep ones cost seconds at 112×112.
SMALL_BACKBONE = {"width": 4, "embedding_dim": 8, "input_size": 32}
SMALL_VIEWS = {
    "network": {"name": "sfnet4", "width": 4}, "view_size": 16, "embedding_dim": 8, "input_size": 32
}  # fmt: skip

# Not a result: how fast, where and with which versions it was made.
VOLATILE = {
    "seconds", "images_per_second", "data_wait", "versions", "config", "title", "command",
    "report", "fingerprint", "folder", "time", "model_digest", "digest", "images", "overrides",
}  # fmt: skip
LONGEST = 12


def run(*words: str | Path) -> str:
    """What a command prints; it must succeed."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "200"
    try:
        done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    assert done.exit_code == 0, done.output
    return done.stdout


def train(place: Path, name: str, *overrides: str, **sections: Any) -> Path:
    recipe = place / f"{name}.yaml"
    recipe.write_text(yaml.safe_dump({**TINY, **sections}))
    run("train", recipe, *overrides, "--output", place / name)
    return place / name


# -- reading what was written ----------------------------------------------------------------------


def numbers(value: Any) -> Numbers:
    """The value without what may change from run to run; long lists by their moments."""
    if isinstance(value, dict):
        return {key: numbers(each) for key, each in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        if len(value) > LONGEST and all(isinstance(each, int | float) for each in value):
            return moments(value)
        return [numbers(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"\S*/\S+", "PATH", value)
    return value


def moments(values: Any) -> list[float]:
    """How many, their sum, and their sum weighted by place: another order shows, too."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    place = np.arange(1, len(flat) + 1) / len(flat)
    return [len(flat), float(flat.sum()), float((flat * place).sum())]


def read_json(path: Path) -> Numbers:
    return numbers(json.loads(path.read_text(encoding="utf-8")))


def read_metrics(folder: Path) -> list[Numbers]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [numbers(json.loads(line)) for line in lines]


class _Cells(HTMLParser):
    """The texts of the elements of a page that have one of these tags."""

    def __init__(self, *tags: str) -> None:
        super().__init__()
        self.tags = tags
        self.cells: list[str] = []
        self.depth = 0

    def handle_starttag(self, tag: str, attributes: object) -> None:
        if tag in self.tags:
            self.depth += 1
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.tags:
            self.depth -= 1

    def handle_data(self, data: str) -> None:
        if self.depth:
            self.cells[-1] += f" {data}"


def read_page(path: Path, *tags: str) -> list[str]:
    """The numbers in a page's table cells and bold words (its tiles), one by one, in order.

    Those that word a duration, a version or a place are left out, and so is the digest of all
    settings in the name of a sweep's run: every new option changes it. `tags` are read as well.
    """
    parser = _Cells("td", "b", *tags)
    parser.feed(path.read_text(encoding="utf-8"))
    found = []
    for cell in parser.cells:
        if re.search(r"\d+\.\d+\.\d|\d:\d\d|\d (ms|s|min|h)\b|/\w|seconds|minutes", cell):
            continue
        named = re.sub(r"-[0-9a-f]{10}\b", "", cell)
        words = re.findall(r"[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?", named)
        if words:
            found.append(" ".join(words))
    return found


# -- made data -------------------------------------------------------------------------------------


def people_folder(root: Path, *, people: int, images: int, size: int = 32) -> Path:
    """Smooth patterns, one per person, under noise: something a network can tell apart."""
    generator = np.random.default_rng(7)
    for person in range(people):
        coarse = generator.uniform(40, 215, (4, 4, 3))
        face = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
        for number in range(images):
            picture = np.clip(face + generator.normal(0, 25, face.shape), 0, 255)
            path = root / f"p{person:02}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), picture.astype(np.uint8))
    return root


def saved_embeddings(path: Path, names: list[str], people: list[int], *, seed: int = 0) -> Path:
    """Embeddings as `extract` leaves them: a centre for each person, and noise around it."""
    centres = np.random.default_rng(5).normal(size=(max(people) + 1, 16))
    noise = np.random.default_rng([6, seed]).normal(0, 0.9, (len(people), 16))
    rows = centres[people] + noise
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, rows.astype(np.float32))
    path.with_suffix(".txt").write_text("".join(f"{name}\n" for name in names))
    return path


# -- cases -----------------------------------------------------------------------------------------


def head_names() -> list[str]:
    from sphereface2.heads import HEADS

    return list(HEADS)


def backbone_names() -> list[str]:
    from sphereface2.backbones import BACKBONES

    return list(BACKBONES)


def training_with(head: str) -> Case:
    def case(place: Path) -> Numbers:
        folder = train(place, "run", head={"name": head}, evaluation={"sets": PAIRS})
        return read_metrics(folder)

    return case


def training_of(backbone: str) -> Case:
    def case(place: Path) -> Numbers:
        small = {"name": backbone, **(SMALL_VIEWS if backbone == "views" else SMALL_BACKBONE)}
        return read_metrics(train(place, "run", backbone=small, evaluation={"sets": PAIRS}))

    return case


def training_variants(place: Path) -> Numbers:
    """Options of the training that have numbers of their own."""
    variants = {
        "accumulated": ["training.accumulate=2"],
        "clipped": ["training.clip_norm=0.5"],
        "fused": ["optimizer.fused_head=true"],
        "sampled": ["training.sample_rate=0.5"],
        "noisy": ["label_noise.rate=0.4"],
        "strangers": [
            "open_set.share=0.25",
            "open_set.data={name: synthetic, people: 4, images_per_person: 4, image_size: 32, "
            "first_person: 8}",
        ],
        "stepped": ["schedule.name=step", "schedule.milestones=[1,2]"],
        "polynomial": ["schedule.name=polynomial", "schedule.warmup=1"],
        "bf16": ["precision=bf16"],
    }
    return {
        name: read_metrics(train(place, name, *overrides)) for name, overrides in variants.items()
    }


def label_noise(place: Path) -> Numbers:
    found = {}
    for kind in ("flip", "resample"):
        folder = train(place, kind, f"label_noise={{rate: 0.3, kind: {kind}}}")
        with (folder / "label_noise.csv").open(encoding="utf-8") as file:
            found[kind] = list(csv.reader(file))
    return found


def batch_order(place: Path) -> Numbers:
    from sphereface2.data.loader.loader import BatchPlan

    labels = np.repeat(np.arange(7), [1, 2, 3, 4, 5, 6, 7])
    found = {}
    for images_per_person in (1, 2):
        plan = BatchPlan(labels, batch_size=8, images_per_person=images_per_person, seed=3)
        found[str(images_per_person)] = [plan.epoch(epoch).tolist() for epoch in (0, 1)]
    return found


def class_weights(place: Path) -> Numbers:
    """The start of every head's parameters from a seed."""
    import torch

    found = {}
    for name in head_names():
        torch.manual_seed(11)
        head = build_head(name, 8, num_classes=6)
        found[name] = {key: moments(value.tolist()) for key, value in head.state_dict().items()}
    return found


def verification(place: Path) -> Numbers:
    """A run's own sets: the table, the intervals, the slices, the report; then the calibration."""
    folder = train(place, "run", evaluation={"sets": PAIRS})
    run("evaluate", folder)
    found = {
        "evaluation": read_json(folder / "evaluation.json"),
        "report": read_page(folder / "report.html"),
    }
    run("calibrate", folder, "--far", "0.1", "--far", "0.05", "--prior", "0.2")
    model = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))
    return {**found, "model": numbers(model)}


def comparison(place: Path) -> Numbers:
    for seed in (0, 1):
        folder = train(place, f"run{seed}", f"seed={seed}", evaluation={"sets": PAIRS})
        run("evaluate", folder)
    printed = run("compare", place / "run0", place / "run1", "--output", place / "page.html")
    lines = [line.rstrip() for line in printed.splitlines() if not line.startswith("report:")]
    return {"printed": lines, "page": read_page(place / "page.html")}


def ijb(place: Path) -> Numbers:
    generate_ijb(place / "ijb", sizes=IJBC, scale=0.004, dim=16)
    found = {}
    for name, words in {"kept": ["--norm", "kept"], "weighted": ["--detector-weights"]}.items():
        run(
            "evaluate", "--embeddings", place / "ijb" / "embeddings.npy", "--protocol", "ijb-c",
            "--root", place / "ijb", "--output", place / name, *words,
        )  # fmt: skip
        found[name] = {
            "result": read_json(place / name / "result.json"),
            "report": read_page(place / name / "report.html"),
        }
    return found


def megaface(place: Path) -> Numbers:
    generate_megaface(place / "mega", scale=0.003, dim=16)
    found = {}
    refined = ["--refined", "--noisy-probes", "centre"]
    for name, words in {"all": [], "refined": refined}.items():
        run(
            "evaluate", "--embeddings", place / "mega", "--protocol", "megaface",
            "--output", place / name, *words,
        )  # fmt: skip
        found[name] = {
            "result": read_json(place / name / "result.json"),
            "report": read_page(place / name / "report.html"),
        }
    return found


def identification(place: Path) -> Numbers:
    model = train(place, "run")
    root = place / "search"
    people_folder(root / "gallery", people=12, images=2)
    people_folder(root / "probes", people=16, images=3)
    found = {}
    for pooling in ("mean", "max"):
        run(
            "evaluate", model, "--protocol", "identification", "--root", root,
            "--pooling", pooling, "--output", place / pooling, "--device", "cpu",
        )  # fmt: skip
        found[pooling] = {
            "result": read_json(place / pooling / "result.json"),
            "report": read_page(place / pooling / "report.html"),
        }
    return found


def tinyface(place: Path) -> Numbers:
    lists = {
        "Gallery_Match": [number % 20 for number in range(40)],
        "Gallery_Distractor": list(range(20, 120)),
        "Probe": [number % 20 for number in range(60)],
    }
    for seed, (kind, people) in enumerate(lists.items()):
        names = [f"{person}_{number}.jpg" for number, person in enumerate(people)]
        saved_embeddings(place / "tiny" / f"{kind}.npy", names, people, seed=seed)
    run(
        "evaluate", "--embeddings", place / "tiny", "--protocol", "tinyface",
        "--output", place / "out",
    )  # fmt: skip
    return {
        "result": read_json(place / "out" / "result.json"),
        "report": read_page(place / "out" / "report.html"),
    }


def groups(place: Path) -> Numbers:
    """Thirty people of two groups, a third of the impostor pairs across them."""
    people = [person for person in range(30) for _ in range(3)]
    names = [f"p{person:02}/{number}.jpg" for number, person in enumerate(people)]
    saved = saved_embeddings(place / "saved.npy", names, people)
    lines = []
    for first in range(0, 90, 3):
        lines += [(first, first + 1, 1), (first + 1, first + 2, 1)]
        lines += [(first, (first + step) % 90, 0) for step in (3, 7, 46)]
    place.joinpath("pairs.txt").write_text(
        "".join(f"{names[left]} {names[right]} {same}\n" for left, right, same in lines)
    )
    place.joinpath("groups.csv").write_text(
        "".join(
            f"{name},{'north' if person < 15 else 'south'}\n"
            for name, person in zip(names, people, strict=True)
        )
    )
    run(
        "evaluate", "--embeddings", saved, "--protocol", "groups", "--root", place,
        "--pairs", place / "pairs.txt", "--groups", place / "groups.csv", "--fmr", "0.1",
        "--output", place / "out",
    )  # fmt: skip
    return {
        "result": read_json(place / "out" / "result.json"),
        "report": read_page(place / "out" / "report.html"),
    }


def group(place: Path) -> Numbers:
    """Faces of nobody in particular to people, by their embeddings alone."""
    people = [number % 9 for number in range(45)]
    names = [f"photo{number:02}.jpg" for number in range(45)]
    saved = saved_embeddings(place / "saved.npy", names, people)
    run("group", saved, place / "out", "--threshold", "0.35")
    with (place / "out" / "faces.csv").open(encoding="utf-8") as file:
        return {
            "faces": list(csv.reader(file)),
            "people": read_json(place / "out" / "people.json"),
            "page": read_page(place / "out" / "index.html", "span"),
        }


def inspection(place: Path) -> Numbers:
    crops = people_folder(place / "crops", people=8, images=8)
    model = train(place, "run", data={"name": "folder", "path": str(crops)})
    # Labels exchanged on purpose, so that there is something to find.
    for number in range(2):
        a, b = crops / "p00" / f"{number}.png", crops / "p01" / f"{number}.png"
        a.rename(place / "moved.png")
        b.rename(a)
        (place / "moved.png").rename(b)
    out = place / "inspected"
    run("inspect", crops, "--model", model, "--output", out, "--device", "cpu")
    return {
        # Beside it lies embeddings.json: digests of the model and the images, no numbers.
        "results": {"inspection.json": read_json(out / "inspection.json")},
        "page": read_page(out / "inspection.html", "span"),
    }


def sweep(place: Path) -> Numbers:
    recipe = place / "tiny.yaml"
    recipe.write_text(yaml.safe_dump({**TINY, "evaluation": {"sets": PAIRS}}))
    run(
        "sweep", recipe, "head.margin=0.2,0.4", "--seeds", "1", "--output", place / "sweep",
        "--jobs", "1",
    )  # fmt: skip
    results = sorted((place / "sweep").rglob("result.json"))
    assert results
    return {
        "result": read_json(results[0]),
        "page": read_page(results[0].with_name("index.html")),
    }


def cases() -> Iterator[tuple[str, Case]]:
    """Every case by its name, which is the name of the file of its numbers."""
    for name in head_names():
        yield f"training-{name}", training_with(name)
    for name in backbone_names():
        yield f"training-{name}", training_of(name)
    for case in (
        training_variants,
        label_noise,
        batch_order,
        class_weights,
        verification,
        comparison,
        ijb,
        megaface,
        identification,
        tinyface,
        groups,
        group,
        inspection,
        sweep,
    ):
        yield case.__name__.replace("_", "-"), case
