"""The rows of the paper's tables as changes to a recipe, each beside the paper's own numbers.

The same rows serve both scales: what is particular to a scale stands in its recipe. A head that
differs from the recipe's is given with all that matters, because a new name drops the old options.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sphereface2.evaluation.results import COMBINED
from sphereface2.reporting.published import (
    BALANCE,
    LOSSES,
    PARAMETERS,
    PRINCIPLES,
    SHARPNESS,
    PublishedTable,
)
from sphereface2.sweeping.grid import Setting

SMALL_COLUMNS = {
    "plain": "LFW",
    "age-30": "AgeDB-30",
    "cross-age": "CA-LFW",
    "cross-pose": "CP-LFW",
    COMBINED: "Combined",
}
"""The sets of rendered people, and the sets of the paper that they stand for."""
PAPER_COLUMNS = {
    name: name for name in ("LFW", "AgeDB-30", "CA-LFW", "CP-LFW")
} | {COMBINED: "Combined"}  # fmt: skip


@dataclass(frozen=True)
class Ground:
    """What the rows of a table stand on.

    recipe: what they change
    columns: our sets -> the paper's columns
    radius: of SphereFace2 where the table does not vary it; 40 with the paper's large network
    balance_pn, balance_eh: λ of the second and third rung of the ablation, which the paper tuned
        and does not print: at small scale the best of four and of three that were tried, at the
        paper's scale what weighs positives against all negatives alike, for its 8,631 people
    """

    recipe: str
    columns: Mapping[str, str]
    radius: float = 30
    balance_pn: float = 0.9975
    balance_eh: float = 0.98


NOISE_RATES = (0, 20, 40, 60, 80)
"""Percent of wrong labels in the paper's experiment; it draws the curves from 0 on."""

# What the baselines are set to. The paper tuned each on VGGFace2 and does not print the result;
# these are the margins of the methods' own papers, with the radius that all share here.
BASELINES = {
    "softmax": ("head.name=softmax",),
    "normface": ("head.name=normface", "head.scale=30"),
    "sphereface": ("head.name=sphereface", "head.scale=30", "head.margin=1.5"),
    "cosface": ("head.name=cosface", "head.scale=30", "head.margin=0.35"),
    "arcface": ("head.name=arcface", "head.scale=30", "head.margin=0.5"),
    "circle": ("head.name=circle", "head.scale=60", "head.margin=0.25"),
    "curricularface": ("head.name=curricularface", "head.scale=30", "head.margin=0.5"),
}


def sphereface2(
    *,
    kind: str = "c",
    balance: float | str = 0.7,
    radius: float = 30,
    margin: float | None = 0.4,
    sharpness: float = 3,
    more: Sequence[str] = (),
) -> tuple[str, ...]:
    """SphereFace2 with everything said; `margin` None is the type's own."""
    values = {
        "name": f"sphereface2-{kind}",
        "balance": balance,
        "radius": radius,
        "margin": "null" if margin is None else margin,
        "sharpness": sharpness,
        "loss_weight": 10,
    }
    return (*(f"head.{key}={value}" for key, value in values.items()), *more)


def principles(ground: Ground) -> tuple[Setting, ...]:
    """Table 2: from the naive loss on the sphere to SphereFace2, one principle at a time."""
    plain = ("head.bias=none",)  # Eqs. 1 and 2 have none: the margin brings it in (Eq. 4)
    rungs = {
        "none": sphereface2(
            balance="class-fraction", radius=1, margin=0, sharpness=1, more=plain
        ),
        "PN": sphereface2(balance=ground.balance_pn, radius=1, margin=0, sharpness=1, more=plain),
        "PN, EH": sphereface2(balance=ground.balance_eh, margin=0, sharpness=1, more=plain),
        "PN, EH, AM": sphereface2(balance=0.8, sharpness=1),
        "PN, EH, AM, SA": sphereface2(),
    }  # fmt: skip
    naive = sphereface2(balance="null", radius=1, margin=0, sharpness=1, more=plain)
    return (
        Setting("naive, without λ", naive),
        *(
            Setting(label, overrides, paper_row(PRINCIPLES, label, ground.columns))
            for label, overrides in rungs.items()
        ),
    )


def balance(ground: Ground) -> tuple[Setting, ...]:
    """Table 3: λ with t = 1."""
    return tuple(
        Setting(
            f"λ={value}",
            sphereface2(balance=value, sharpness=1),
            paper_row(BALANCE, f"λ={value}", ground.columns),
        )
        for value in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99)
    )


def sharpness(ground: Ground) -> tuple[Setting, ...]:
    """Table 4: t for three λ."""
    return tuple(
        Setting(
            f"λ={value}, t={t}",
            sphereface2(balance=value, sharpness=t),
            paper_row(SHARPNESS, f"λ={value}, t={t}", ground.columns),
        )
        for value in (0.6, 0.7, 0.8)
        for t in (2, 3)
    )


def hyperparameters(ground: Ground) -> tuple[Setting, ...]:
    """Table 11: r, m and t, each around λ = 0.7, r = 30, m = 0.4, t = 3."""
    centre = {"radius": 30.0, "margin": 0.4, "sharpness": 3.0}
    varied = [
        *(("radius", value) for value in (20, 30, 40, 50)),
        *(("margin", value) for value in (0.2, 0.3, 0.5)),
        *(("sharpness", value) for value in (0.3, 0.5, 0.7, 1, 2, 4, 5)),
    ]
    settings = []
    for key, value in varied:
        chosen = centre | {key: value}
        label = f"r={chosen['radius']:g}, m={chosen['margin']:g}, t={chosen['sharpness']:g}"
        # The centre is printed three times; the numbers of all other tables are those of m.
        theirs = f"λ=0.7, {label}" + (" (rows of m)" if chosen == centre else "")
        settings.append(
            Setting(
                label,
                sphereface2(
                    radius=_short(chosen["radius"]),
                    margin=_short(chosen["margin"]),
                    sharpness=_short(chosen["sharpness"]),
                ),
                paper_row(PARAMETERS, theirs, ground.columns),
            )
        )
    return tuple(settings)


def losses(ground: Ground) -> tuple[Setting, ...]:
    """Tables 5 and 14: the losses and the three margin types."""
    theirs = {
        "softmax": "Softmax Loss",
        "normface": "Coco Loss",
        "sphereface": "SphereFace",
        "cosface": "CosFace",
        "arcface": "ArcFace",
        "circle": "Circle Loss",
        "curricularface": "CurricularFace",
    }
    return (
        *(
            Setting(name, BASELINES[name], paper_row(LOSSES, row, ground.columns))
            for name, row in theirs.items()
        ),
        *(_with_numbers(each, ground) for each in margin_types(ground)),
    )


def margin_types(ground: Ground) -> tuple[Setting, ...]:
    """SphereFace2 with the three margins."""
    return (
        Setting("sphereface2-c", sphereface2(radius=ground.radius)),
        Setting("sphereface2-a", sphereface2(kind="a", radius=ground.radius, margin=None)),
        Setting("sphereface2-m", sphereface2(kind="m", radius=ground.radius, margin=None)),
    )


def benchmark_losses(ground: Ground) -> tuple[Setting, ...]:
    """The rows of Tables 6 to 8 that the paper trained itself."""
    names = ("sphereface", "cosface", "arcface", "circle")
    return (*(Setting(name, BASELINES[name]) for name in names), margin_types(ground)[0])


def adjusted(ground: Ground) -> tuple[Setting, ...]:
    """Table 12: CosFace and ArcFace with and without the similarity adjustment."""
    with_it = "head.sharpness=3"
    return (
        Setting("cosface", BASELINES["cosface"]),
        Setting("cosface, SA", (*BASELINES["cosface"], with_it)),
        Setting("arcface", BASELINES["arcface"]),
        Setting("arcface, SA", (*BASELINES["arcface"], with_it)),
        margin_types(ground)[0],
    )


def margins(ground: Ground) -> tuple[Setting, ...]:
    """Tables 15 and 16: the margin types beside CosFace and ArcFace."""
    return (
        Setting("cosface", BASELINES["cosface"]),
        Setting("arcface", BASELINES["arcface"]),
        *margin_types(ground),
    )


def label_noise(ground: Ground) -> tuple[Setting, ...]:
    """Fig. 10, left: the more labels are wrong, the more is lost."""
    methods = {
        "cosface": BASELINES["cosface"],
        "arcface": BASELINES["arcface"],
        "sphereface2-c": sphereface2(),
    }
    return tuple(
        Setting(
            f"{name}, {percent} %",
            (*overrides, *((f"label_noise.rate={percent / 100}",) if percent else ())),
        )
        for name, overrides in methods.items()
        for percent in NOISE_RATES
    )


def score_shapes(ground: Ground) -> tuple[Setting, ...]:
    """Fig. 5: the scores of pairs for several t."""
    return tuple(Setting(f"t={t}", sphereface2(sharpness=t)) for t in (1, 2, 3, 4))


def gradients(ground: Ground) -> tuple[Setting, ...]:
    """Beyond the paper: g differentiated as printed, and as the authors' code has it."""
    straight = ("head.gradient=straight-through",)
    return (
        Setting("sphereface2-c, exact", sphereface2()),
        Setting("sphereface2-c, straight-through", sphereface2(more=straight)),
        Setting("arcface, exact", BASELINES["arcface"]),
        Setting("arcface, straight-through", (*BASELINES["arcface"], *straight)),
    )


def strangers(ground: Ground) -> tuple[Setting, ...]:
    """Beyond the paper: images of rendered people who are nobody's class, beside fewer classes."""
    few = ("data.people=100",)
    found = []
    for percent in (0, 20, 40):
        data = "{name: synthetic, people: 100, images_per_person: 20, image_size: 32, "
        data += "first_person: 100}"
        mixed = (f"open_set.share={percent / 100}", f"open_set.data={data}") if percent else ()
        found.append(Setting(f"{percent} % strangers", (*sphereface2(), *few, *mixed)))
    return tuple(found)


def newer_losses(ground: Ground) -> tuple[Setting, ...]:
    """Beyond the paper: what users of today compare with."""
    return (
        Setting("adaface", ("head.name=adaface", "head.scale=30", "head.margin=0.4")),
        Setting("magface", ("head.name=magface", "head.scale=30")),
        Setting("simple", ("head.name=simple",)),
        Setting("cosface", BASELINES["cosface"]),
        margin_types(ground)[0],
    )


def paper_row(table: PublishedTable, row: str, columns: Mapping[str, str]) -> dict[str, float]:
    """The paper's numbers of a row, under the names that our columns have."""
    numbers = {ours: table.value(row, theirs) for ours, theirs in columns.items()}
    return {ours: number for ours, number in numbers.items() if number is not None}


def _with_numbers(setting: Setting, ground: Ground) -> Setting:
    row = setting.label.replace("sphereface2", "SphereFace2")[:-1] + setting.label[-1].upper()
    return Setting(setting.label, setting.overrides, paper_row(LOSSES, row, ground.columns))


def _short(number: float) -> float:
    return int(number) if float(number).is_integer() else number
