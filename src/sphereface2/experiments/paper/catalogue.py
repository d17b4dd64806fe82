"""Every table and figure of the paper by a name, and some beyond it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from sphereface2.evaluation.experiment_results import SweepFigure
from sphereface2.experiments.paper import published, settings
from sphereface2.experiments.paper.settings import LARGE, SMALLER
from sphereface2.experiments.sweep.plan import Setting
from sphereface2.reporting.tables import PublishedTable

Scale = Literal["small", "paper", "real"]
RowsOf = Callable[[settings.Ground], tuple[Setting, ...]]

BEYOND = "beyond the paper"
Kind = Literal["table", "scores", "roc", "features", "parallel", "drawing", "real"]
BOTH: tuple[Scale, ...] = ("small", "paper")


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    where: its place in the paper; claim: what the paper says of it, or what is asked beyond it
    kind: how it is made: a table of trained settings; a figure of their scores or ROC; features
        of a few people; a measurement over ranks; a drawing that needs no training, fig-NAME; or
        losses that are tuned and compared on real faces
    rows: the settings that are trained, on the ground of the scale
    protocols: what judges the trained models in place of the pair sets
    table, row_names: the paper's numbers for a protocol, and our label -> the paper's row
    recipe: what is trained at the paper's scale
    dim: of features
    figure: how a table is drawn
    """

    name: str
    title: str
    where: str
    claim: str
    kind: Kind = "table"
    rows: RowsOf | None = None
    protocols: tuple[str, ...] = ()
    table: PublishedTable | None = None
    row_names: Mapping[str, str] = field(default_factory=dict)
    recipe: str = SMALLER
    scales: tuple[Scale, ...] = BOTH
    dim: int = 0
    figure: SweepFigure = field(default_factory=SweepFigure)


_drawing = partial(Experiment, kind="drawing", scales=("small",))
_features = partial(Experiment, kind="features", scales=("small",))
_benchmark = partial(
    Experiment,
    rows=settings.benchmark_losses,
    recipe=LARGE,
    row_names={
        "sphereface": "SphereFace",
        "cosface": "CosFace",
        "arcface": "ArcFace",
        "circle": "Circle Loss",
        "sphereface2-c": "SphereFace2",
    },
)
_adjusted = partial(
    Experiment,
    rows=settings.adjusted,
    row_names={
        "cosface": "CosFace w/o SA",
        "cosface, SA": "CosFace w/ SA",
        "arcface": "ArcFace w/o SA",
        "arcface, SA": "ArcFace w/ SA",
        "sphereface2-c": "SphereFace2",
    },
)
_margins = partial(
    Experiment,
    rows=settings.margins,
    row_names={
        "cosface": "CosFace",
        "arcface": "ArcFace",
        "sphereface2-c": "SphereFace2-C",
        "sphereface2-a": "SphereFace2-A",
        "sphereface2-m": "SphereFace2-M",
    },
)

_ALL = (
    Experiment(
        "principles",
        "Design principles",
        "Table 2",
        "Each principle adds to the accuracy: 74.5 % without any, 94.3 % with all four.",
        rows=settings.principles,
        figure=SweepFigure("ladder"),
    ),
    Experiment(
        "balance",
        "Balance λ of positive and negative pairs",
        "Table 3",
        "The accuracy is stable for λ from 0.5 to 0.9 and lower at both ends.",
        rows=settings.balance,
        figure=SweepFigure("values", over=("head.balance",)),
    ),
    Experiment(
        "sharpness",
        "Similarity adjustment t",
        "Table 4",
        "t = 3 is better than t = 2, and both are better than none, for every λ.",
        rows=settings.sharpness,
        figure=SweepFigure("values", over=("head.sharpness",), by="head.balance"),
    ),
    Experiment(
        "hyperparameters",
        "Radius r, margin m and similarity adjustment t",
        "Table 11",
        "r = 40, m = 0.3 and t = 3 are best; t below 0.7 costs five points.",
        rows=settings.hyperparameters,
        figure=SweepFigure("values", over=("head.radius", "head.margin", "head.sharpness")),
    ),
    Experiment(
        "losses",
        "Loss functions",
        "Tables 5 and 14",
        "SphereFace2 is above the margin losses, which are above softmax.",
        rows=settings.losses,
    ),
    _benchmark(
        "ijb-b",
        "IJB-B",
        "Table 6",
        "SphereFace2 is ahead at every FAR, the more the lower it is.",
        protocols=("ijb-b",),
        table=published.IJB_B,
    ),
    _benchmark(
        "ijb-c",
        "IJB-C",
        "Table 7",
        "SphereFace2 is ahead at every FAR, as on IJB-B.",
        protocols=("ijb-c",),
        table=published.IJB_C,
    ),
    _benchmark(
        "megaface",
        "MegaFace",
        "Table 8",
        "SphereFace2 is ahead in identification and verification.",
        protocols=("megaface",),
        table=published.MEGAFACE,
    ),
    _adjusted(
        "adjustment-ijb-b",
        "Similarity adjustment for CosFace and ArcFace, IJB-B",
        "Table 12, left",
        "The adjustment helps ArcFace and hurts CosFace; SphereFace2 stays ahead.",
        protocols=("ijb-b",),
        table=published.IJB_B_ADJUSTED,
    ),
    _adjusted(
        "adjustment-ijb-c",
        "Similarity adjustment for CosFace and ArcFace, IJB-C",
        "Table 12, right",
        "The adjustment helps ArcFace and hurts CosFace; SphereFace2 stays ahead.",
        protocols=("ijb-c",),
        table=published.IJB_C_ADJUSTED,
    ),
    _margins(
        "margins-ijb-b",
        "Margin types, IJB-B",
        "Table 15",
        "All three margin types are ahead of CosFace and ArcFace.",
        protocols=("ijb-b",),
        table=published.IJB_B_MARGINS,
    ),
    _margins(
        "margins-ijb-c",
        "Margin types, IJB-C",
        "Table 16",
        "All three margin types are ahead of CosFace and ArcFace.",
        protocols=("ijb-c",),
        table=published.IJB_C_MARGINS,
    ),
    Experiment(
        "label-noise",
        "Wrong labels",
        "Fig. 10, left",
        "SphereFace2 loses less than CosFace and ArcFace as 20 to 80 % of the labels are altered.",
        rows=settings.label_noise,
        figure=SweepFigure("noise"),
    ),
    Experiment(
        "parallel",
        "Classes shared out over ranks",
        "Fig. 10, right",
        "SphereFace2 speeds up almost linearly, CosFace and ArcFace less.",
        kind="parallel",
    ),
    _drawing(
        "fig-loss",
        "Loss against the cosine of the target",
        "Fig. 3",
        "A larger s or r looks more at hard samples.",
    ),
    _drawing(
        "fig-margin",
        "Angular margins",
        "Fig. 4",
        "The margin of SphereFace2 lies around one threshold for all classes.",
    ),
    Experiment(
        "fig-scores",
        "Scores of genuine and impostor pairs for several t",
        "Fig. 5",
        "A larger t spreads the scores and lessens the overlap.",
        rows=settings.score_shapes,
        kind="scores",
    ),
    _drawing(
        "fig-adjustment",
        "The similarity adjustment g",
        "Fig. 6",
        "g stretches the range in which cosines lie.",
    ),
    _features(
        "fig-features-2d",
        "Features in the plane with the decision boundaries",
        "Fig. 7",
        "The bias moves the boundaries, and the empirical margin fits the induced one.",
        dim=2,
    ),
    _features(
        "fig-features-3d",
        "Features in space with the decision planes",
        "Fig. 8",
        "As in the plane, the empirical margin fits the induced one.",
        dim=3,
    ),
    Experiment(
        "fig-roc",
        "ROC on IJB-B and IJB-C",
        "Fig. 9",
        "The curve of SphereFace2 lies above the others at low FAR.",
        rows=settings.benchmark_losses,
        recipe=LARGE,
        kind="roc",
        protocols=("ijb-b", "ijb-c"),
    ),
    Experiment(
        "gradient",
        "Exact and straight-through gradients",
        BEYOND,
        "Does it matter that the authors' code does not differentiate g, as the paper does?",
        rows=settings.gradients,
    ),
    Experiment(
        "open-set",
        "Strangers as negatives for every class",
        BEYOND,
        "Do binary classifiers gain from people of no class, as the paper suggests?",
        rows=settings.strangers,
        scales=("small",),
    ),
    Experiment(
        "newer-losses",
        "AdaFace, MagFace and SimPLE",
        BEYOND,
        "How do losses that came later compare?",
        rows=settings.newer_losses,
    ),
    Experiment(
        "real-losses",
        "Loss functions on real faces, each tuned alike",
        BEYOND,
        "Which loss is best on your own faces? --data DIR has a train and a val set of people.",
        kind="real",
        scales=("real",),
    ),
    Experiment(
        "real-noise",
        "Wrong labels on real faces",
        BEYOND,
        "Do 20 and 40 % of wrong labels cost SphereFace2 less, with the settings of real-losses?",
        kind="real",
        scales=("real",),
    ),
)

EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}
