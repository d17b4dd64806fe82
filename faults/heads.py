"""Random settings of every head: a finite loss and finite gradients, or a refusal in one sentence.

python -m faults.heads [--settings 10000]

Options are drawn from the signatures of the registry, in their range and out of it; so are sizes,
precision and batches: cosines at ±1, rows that are equal or zero, embeddings of any length.
"""

from __future__ import annotations

import inspect
import math
import os
import random
import types
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from faults.outcomes import Outcomes, arguments, finish
from sphereface2.heads import HEADS, ProxyHead, build_head
from sphereface2.heads.head import Head
from sphereface2.registry import option_names

_EDGES = (0.0, 1.0, -1.0, 0.5, 2.0, math.pi, 1e-3, 1e-6)
_BEYOND = (-0.01, -1e-6, 1.01, 3.2, -2.0)
_EXTREME = (1e3, 1e4, 50.0, -50.0, 200.0, -200.0, math.nan, math.inf, -math.inf)
_LENGTHS = (1e-30, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 1.0, 1.0, 30.0, 1e3, 1e6, 1e12)
_ROWS = ("random", "class", "opposite", "equal", "zero", "mixed")
_CHUNK = 100  # settings that are kept as one case


@dataclass
class Setting:
    """A head with its options, and a batch for it."""

    head: str
    options: dict[str, Any]
    dim: int
    classes: int
    batch: int
    rows: str
    length: float
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    sample_rate: float = 1.0
    unknown: bool = False
    seed: int = 0
    weights: float = 1.0


def draw(seed: int) -> Setting:
    """The setting of a seed."""
    pick = random.Random(seed)
    name = pick.choice(sorted(HEADS))
    factory = HEADS[name]
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    defaults = inspect.signature(factory).parameters
    names = option_names(factory)
    chosen = pick.sample(names, min(len(names), pick.choice((0, 1, 1, 2, 2, 3, 5))))
    return Setting(
        head=name,
        options={key: _value(pick, key, hints[key], defaults[key].default) for key in chosen},
        dim=pick.choice((1, 2, 3, 8, 16, 33)),
        classes=pick.choice((2, 3, 5, 17, 64, 150, 700)),
        batch=pick.choice((1, 2, 3, 4, 8, 16)),
        rows=pick.choice(_ROWS),
        length=pick.choice(_LENGTHS),
        dtype=pick.choice((torch.float32, torch.float32, torch.float32, torch.float64)),
        autocast=pick.random() < 0.15,
        sample_rate=pick.choice((1.0, 1.0, 1.0, 0.3)),
        unknown=pick.random() < 0.2,
        seed=seed,
        weights=pick.choice((1.0, 1.0, 1.0, 1.0, 1e-6, 1e6)),
    )


def _value(pick: random.Random, key: str, hint: Any, default: Any) -> Any:
    if key == "margin_schedule":
        return pick.choice((None, [(0, 0.0), (2, 0.3)], [(1, _number(pick, 0.3))],
                            {"epochs": [0, 2]}, {"epochs": [2, 1]}, [], "soon"))  # fmt: skip
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    part = pick.choice(parts)
    if part is type(None):
        return None
    if get_origin(part) is Literal:
        return pick.choice((*get_args(part), *get_args(part), f"{get_args(part)[0]}x"))
    if part is bool:
        return pick.random() < 0.5
    if part is int:
        return pick.choice((-1, 0, 1, 2, 3, 5, 2.5))
    return _number(pick, default)


def _number(pick: random.Random, default: Any) -> float:
    usual = float(default) if isinstance(default, int | float) and default else 1.0
    kind = pick.random()
    if kind < 0.5:
        return float(usual * 10.0 ** pick.uniform(-1.5, 1.5))
    return pick.choice(_EDGES if kind < 0.75 else _BEYOND if kind < 0.88 else _EXTREME)


def batch_of(setting: Setting, head: Head, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Embeddings and labels of a setting."""
    labels = torch.randint(setting.classes, (setting.batch,), generator=generator)
    if setting.unknown:
        labels[torch.rand(setting.batch, generator=generator) < 0.5] = -1
    rows = torch.randn(setting.batch, setting.dim, generator=generator, dtype=setting.dtype)
    kinds = ("random", "class", "opposite", "zero")
    if isinstance(head, ProxyHead) and setting.rows in ("class", "opposite", "mixed"):
        weight = head.weight.detach().to(setting.dtype)
        own = weight.reshape(setting.classes, -1, setting.dim)[labels.clamp_min(0), 0]
        own = own / own.norm(dim=1, keepdim=True).clamp_min(1e-30)
    else:
        own = rows / rows.norm(dim=1, keepdim=True)
    for index in range(setting.batch):
        kind = kinds[index % 4] if setting.rows == "mixed" else setting.rows
        if kind == "class":
            rows[index] = own[index]
        elif kind == "opposite":
            rows[index] = -own[index]
        elif kind == "equal":
            rows[index] = rows[0]
        elif kind == "zero":
            rows[index] = 0.0
    return (rows * setting.length).requires_grad_(), labels


def fault_of(setting: Setting) -> tuple[str, str]:
    """What is wrong, empty if nothing is; and what came of it: "finite" or the refusal."""
    torch.manual_seed(setting.seed)
    generator = torch.Generator().manual_seed(setting.seed)
    try:
        head = build_head(setting.head, setting.dim, setting.classes, **setting.options)
    except ValueError as refusal:
        text = str(refusal)
        is_sentence = "\n" not in text and len(text) > 10
        return ("" if is_sentence else f"the refusal is not a sentence: {text!r}"), text
    except Exception as error:
        return f"building ends in {type(error).__name__}: {error}", ""
    try:
        return _steps(setting, head.to(setting.dtype), generator), "finite"
    except Exception as error:
        return f"a step ends in {type(error).__name__}: {error}", ""


def _steps(setting: Setting, head: Head, generator: torch.Generator) -> str:
    if isinstance(head, ProxyHead):
        head.sample_negatives(setting.sample_rate)
        with torch.no_grad():
            head.weight.mul_(setting.weights)
    for step in range(2):  # the second sees what the first has left in running means and memories
        head.advance(float(step))
        head.collect_statistics = bool(step)
        embeddings, labels = batch_of(setting, head, generator)
        head.zero_grad()
        with torch.autocast("cpu", enabled=setting.autocast):
            loss = head(embeddings, labels)
        if not bool(torch.isfinite(loss)):
            return f"the loss is {loss.item()}"
        loss.backward()
        named = {"embeddings": embeddings.grad} | {k: v.grad for k, v in head.named_parameters()}
        for name, gradient in named.items():
            if gradient is not None and not bool(torch.isfinite(gradient).all()):
                return f"the gradient of {name} is not finite"
    for name, value in head.statistics().items():
        if not math.isfinite(value):
            return f"the statistic {name} is {value}"
    for name, buffer in head.state_dict().items():
        if not bool(torch.isfinite(buffer).all()):
            return f"{name} is not finite after two steps"
    return ""


def run(outcomes: Outcomes, *, settings: int, first: int = 0) -> Counter[str]:
    """Try so many settings, beginning with a seed; how many were refused and how many finite."""
    came: Counter[str] = Counter()
    command = f"python -m faults.heads --settings {settings}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # softmax heads warn of samples of nobody known
        for start in range(first, first + settings, _CHUNK):
            seeds = range(start, min(start + _CHUNK, first + settings))
            case = f"seeds {seeds.start} to {seeds.stop - 1}"
            if outcomes.has("settings of heads", case):
                continue
            lost, kinds = [], Counter[str]()
            for seed in seeds:
                setting = draw(seed)
                fault, outcome = fault_of(setting)
                kinds["finite" if outcome == "finite" else "refused"] += not fault
                if fault:
                    lost.append(f"seed {seed}: {fault} ({setting})")
            outcomes.add("settings of heads", case, *lost, tried=len(seeds), command=command,
                         **dict(kinds))  # fmt: skip
            came += kinds
            if seeds.stop % 1000 == 0:
                print(f"{seeds.stop - first} settings: {dict(came)}", flush=True)
    return came


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--settings", type=int, default=10_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    # Some virtual machines announce AMX and then refuse it; training says so, heads alone do not.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    outcomes = Outcomes(given.work / "heads.json")
    run(outcomes, settings=1000 if given.quick else given.settings, first=given.seed)
    finish(outcomes)


if __name__ == "__main__":
    main()
