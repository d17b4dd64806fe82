"""The report of a verification: accuracy, curves, scores, training, hardest pairs, data, config."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from sphereface2.data.sources.source import Images
from sphereface2.data.transforms import resize
from sphereface2.evaluation.pair_scores import COMBINED
from sphereface2.evaluation.thresholds import in_figures
from sphereface2.evaluation.verification import RAW_PIXELS, UNTRAINED, EvaluationResult
from sphereface2.reporting.figures.verification import (
    AcceptCurve,
    curve_figure,
    det_figure,
    histogram_figure,
    roc_figure,
    training_curves,
)
from sphereface2.reporting.pages import (
    LegendEntry,
    Page,
    Section,
    Tile,
    blocks,
    definitions,
    png_data_uri,
)
from sphereface2.reporting.style import (
    GENUINE_COLOUR,
    IMPOSTOR_COLOUR,
    ImageArray,
    method_colour,
    to_svgs,
)
from sphereface2.reporting.tables import (
    PublishedTable,
    accuracy_content,
    decimals,
    detail_content,
    interval_text,
    percent,
    published_content,
    slices_content,
)

DEFINITIONS = (
    (
        "Score",
        "The cosine of the two embeddings of a pair. A pair is accepted if its score is at least "
        "the threshold; pairs with equal scores are accepted or rejected together.",
    ),
    (
        "Accuracy",
        "The LFW protocol: for each fold the threshold is chosen on the other folds (nine of ten) "
        "and applied to this one. The number is the mean over the folds, after ± comes the "
        "population standard deviation over the folds. Candidates are the midpoints between "
        "neighbouring scores; of equally good ones the lowest is taken.",
    ),
    (
        "Interval",
        "Where the number would lie for other people of the same kind, with 95 % confidence. "
        "Where the set says who its images show, people are drawn with replacement 1,000 times: a "
        "genuine pair counts as often as its person was drawn, an impostor pair as often as the "
        "product of its two; thresholds for a FAR are chosen again each time. Pairs that share "
        "people are not independent trials, and an interval that takes them so is too narrow. "
        "Where the people are not known, it is Wilson's interval for the pairs; for TAR at FAR "
        "the uncertainty of the threshold is added to it. An interval over people is never "
        "narrower than that. The deviation over the folds after ± is not an interval.",
    ),
    (
        "Best-threshold accuracy",
        "The accuracy of the one threshold that is best for all pairs of the set. It is chosen on "
        "the pairs it is judged by, so it reads higher than the accuracy above; compare it only "
        "with numbers of the same name.",
    ),
    (
        "TAR at FAR",
        "The highest share of genuine pairs accepted (TAR) at any threshold whose share of "
        "accepted impostor pairs (FAR) does not exceed the target. The FAR reached is given, "
        "as impostor pairs accepted of all. A target below one impostor pair of the set is not "
        "resolved, and no number is given. With fewer than three accepted, the true threshold may "
        "lie anywhere above all impostor pairs at hand: the interval then starts at 0.",
    ),
    (
        "EER",
        "The error rate where FAR equals the share of genuine pairs rejected, interpolated "
        "linearly between the two neighbouring operating points.",
    ),
    (
        "AUC",
        "The area under the ROC: the chance that a genuine pair scores above an impostor pair, "
        "a tie counting half.",
    ),
    (
        "Combined",
        "The pairs of all sets pooled, with one threshold for all; fold i holds fold i of every "
        "set.",
    ),
    (
        "Raw pixels, untrained network",
        "Two baselines on the same pairs: the pixels as a vector, less their mean; and the same "
        "network before training.",
    ),
)

CHANGED = "changed"
"""The topic of notices that say what a resumed run was changed in."""

ROC_NOTE = (
    "How many pairs of one person are accepted, over how many pairs of two people are accepted "
    "with them. Up and to the left is better. Each axis starts at one impostor pair: the set says "
    "nothing about rarer errors."
)
_DET_NOTE = (
    "The two errors against each other, both on logarithmic axes: how many pairs of two people are "
    "accepted, and how many pairs of one person are rejected. Down and to the left is better; on "
    "such axes the differences of good models can be seen."
)
_BAND_NOTE = " The band is the 95 % interval, from four accepted impostor pairs on."
SCORE_LEGEND = (
    LegendEntry("same person", GENUINE_COLOUR, "filled"),
    LegendEntry("different people", IMPOSTOR_COLOUR, "filled"),
)


@dataclass(frozen=True, eq=False)
class PairPicture:
    """The two images of a pair, uint8 RGB, with its score."""

    left: ImageArray
    right: ImageArray
    score: float
    same: bool
    set_name: str


@dataclass(frozen=True, eq=False)
class ReportPictures:
    """All that a report shows as pictures; each part may be missing.

    no_contact_sheet: what is said in place of a contact sheet that is missing
    """

    contact_sheet: ImageArray | None = None
    no_contact_sheet: str = "No contact sheet was given."
    contact_sheet_caption: str = "Each row is one person."
    hardest: tuple[PairPicture, ...] = ()


def verification_page(
    evaluation: EvaluationResult,
    *,
    history: Sequence[Mapping[str, Any]],
    config_yaml: str,
    pictures: ReportPictures,
    published: PublishedTable | None = None,
) -> Page:
    """The report of an evaluation.

    history: the parsed lines of metrics.jsonl; whatever is missing from them is left out
    published: what others printed, to stand beside ours for sets of the same names
    """
    block = blocks()
    legend = [
        LegendEntry(model, method_colour(model), "dashed" if model == UNTRAINED else "")
        for model in evaluation.models
    ]
    scores = (
        f"The cosines that {evaluation.model} gives to pairs of one person and to pairs of two "
        "people. The less the two overlap, the better. The threshold is the mean of the folds' "
        "thresholds."
    )
    hardest = [
        block.gallery(
            title,
            f"The worst of each set. A pair that is {decision} at the threshold is a {error}.",
            [_card(evaluation, pair) for pair in pictures.hardest if pair.same == same],
        )
        for same, title, decision, error in (
            (True, "One person, lowest scores", "rejected", "false non-match"),
            (False, "Two people, highest scores", "accepted", "false match"),
        )
    ]
    return Page(
        kind="verification",
        kicker="Verification report",
        title=evaluation.title,
        accent=method_colour(evaluation.model),
        head=[block.tiles(_tiles(evaluation))],
        sections=[
            Section("accuracy", "Accuracy", _accuracy(evaluation, history, published)),
            curve_section("ROC", roc_figure, evaluation, ROC_NOTE, legend),
            curve_section("DET", det_figure, evaluation, _DET_NOTE, legend),
            Section(
                "scores",
                "Scores",
                [
                    block.figures(
                        _histograms(evaluation),
                        scores,
                        (*SCORE_LEGEND, LegendEntry("threshold", "var(--ink)", "dashed")),
                    )
                ],
            ),
            Section("training", "Training", _training(history)),
            Section("hardest", "Hardest pairs", hardest),
            Section("data", "Data", [_data(pictures)]),
            definitions(DEFINITIONS),
            Section("configuration", "Configuration", _configuration(history, config_yaml)),
        ],
        versions=evaluation.versions,
    )


def _accuracy(
    evaluation: EvaluationResult,
    history: Sequence[Mapping[str, Any]],
    published: PublishedTable | None,
) -> list[Markup]:
    block = blocks()
    accuracy, slices = accuracy_content(evaluation), slices_content(evaluation)
    noticed = [line["text"] for line in history if line.get("topic") == "data"]
    content = [block.note(f"{accuracy.title}: is it the same person, or are they two?")]
    notes = dict.fromkeys([*noticed, *evaluation.notes])
    content += [block.note(f"{text}.", "Note:") for text in notes]
    content.append(block.table(accuracy))
    if evaluation.step_in_words:
        content.append(block.note(f"Checkpoint: {evaluation.step_in_words}."))
    content.append(block.table(detail_content(evaluation), heading=True))
    if slices is not None:
        content.append(block.fold(slices.title, block.table(slices)))
    beside = None if published is None else published_content(evaluation, published)
    if beside is not None:
        content.append(block.table(beside, heading=True))
    return content


def curve_section(
    name: str,
    draw: Callable[[str, Sequence[AcceptCurve]], Figure],
    evaluation: EvaluationResult,
    note: str,
    legend: Sequence[LegendEntry],
) -> Section:
    """ROC or DET: one figure per set, the curves of all models in the colours of the legend."""
    colours = {entry.label: entry.colour for entry in legend}
    drawn = []
    for set_name in evaluation.sets:
        rows = [row for row in evaluation.rows if row.set_name == set_name]
        curves = [AcceptCurve.of(row, colour=colours[row.model]) for row in rows]
        drawn.append((f"{name}, {set_name}", draw(set_name, curves)))
    if any(row.roc_band for row in evaluation.rows):
        note += _BAND_NOTE
    svgs = to_svgs(name.lower(), drawn)
    return Section(name.lower(), name, [blocks().figures(svgs, note, legend)])


def _tiles(evaluation: EvaluationResult) -> list[Tile]:
    """The model on the first set and on all of them, then the baselines on the first set."""
    results = evaluation.results_of()
    first = next((r for r in results if r.set_name == "plain"), results[0])
    shown = [(first, "main")]
    shown += [(r, "") for r in results if r.set_name == COMBINED and r is not first]
    for baseline in (RAW_PIXELS, UNTRAINED):
        result = evaluation.find(baseline, first.set_name)
        if result is not None and baseline != evaluation.model:
            shown.append((result, "base"))
    tiles = []
    for result, style in shown:
        digits = decimals(result.pairs)
        ends = interval_text(result.accuracy_interval, digits=digits)
        note = f"{result.set_name} · {result.pairs:,} pairs"
        tiles.append(
            Tile(
                result.model,
                percent(result.accuracy, digits=digits),
                f"{ends}\N{THIN SPACE}% · {note}" if ends else note,
                style,
                small=f" ± {percent(result.accuracy_std, digits=digits)}\N{THIN SPACE}%",
            )
        )
    return tiles


def _histograms(evaluation: EvaluationResult) -> list[Markup]:
    results = evaluation.results_of()
    # One scale for all sets, so that a shift between them can be seen.
    limits = (
        min(result.histogram.edges[0] for result in results),
        max(result.histogram.edges[-1] for result in results),
    )
    drawn = [
        (
            f"Score histogram, {each.set_name}",
            histogram_figure(
                each.set_name, each.histogram, threshold=each.threshold, limits=limits
            ),
        )
        for each in results
    ]
    return to_svgs("scores", drawn)


def _training(history: Sequence[Mapping[str, Any]]) -> list[Markup]:
    drawn = [
        (f"{curve.title} over the steps of training", curve_figure(curve))
        for curve in training_curves(history)
    ]
    if not drawn:
        return [blocks().empty("No training history was given.")]
    note = (
        "What the run logged. Active negatives are the comparisons with other people that still "
        "fall on the wrong side."
    )
    return [blocks().note(note), blocks().figures(to_svgs("curve", drawn))]


def _data(pictures: ReportPictures) -> Markup:
    if pictures.contact_sheet is None:
        return Markup(blocks().empty(pictures.no_contact_sheet))
    sheet = png_data_uri(pictures.contact_sheet, max_size=2200)
    return Markup(blocks().sheet(sheet, pictures.contact_sheet_caption))


def _configuration(history: Sequence[Mapping[str, Any]], config_yaml: str) -> list[Markup]:
    block = blocks()
    changes = dict.fromkeys(
        f"at step {line.get('step')}, {line.get('text')}"
        for line in history
        if line.get("topic") == CHANGED
    )
    content = [block.note("Saved as a file, this starts the same run again.")]
    if changes:
        text = "The run was resumed with changes, so that this alone does not repeat it:"
        content = [block.note(text), block.plain_list(changes)]
    return [*content, block.fold("Resolved configuration", block.text(config_yaml))]


def _card(evaluation: EvaluationResult, pair: PairPicture) -> dict[str, Any]:
    result = evaluation.find(evaluation.model, pair.set_name)
    verdict = ""
    if result is not None:
        verdict = "accepted" if pair.score >= result.threshold else "rejected"
    return {
        "left": png_data_uri(pair.left, max_size=160),
        "right": png_data_uri(pair.right, max_size=160),
        "score": in_figures(pair.score),
        "set_name": pair.set_name,
        "verdict": verdict,
        "wrong": verdict == ("rejected" if pair.same else "accepted"),
    }


# -- its pictures ----------------------------------------------------------------------------------

SHEET_ROWS, SHEET_COLUMNS = 7, 10
_SHEET_IMAGE, _SHEET_GAP = 112, 2  # pixels
_HARDEST = 3  # of each kind and set


def hardest_pairs(
    evaluation: EvaluationResult, images: Mapping[str, Images]
) -> tuple[PairPicture, ...]:
    """The pictures of the worst pairs of each kind, of each set that `images` names."""
    return tuple(
        PairPicture(
            images[result.set_name][pair.left],
            images[result.set_name][pair.right],
            pair.score,
            pair.same,
            result.set_name,
        )
        for result in evaluation.results_of()
        if result.set_name in images and result.set_name != COMBINED
        for pair in (*result.hardest_genuine[:_HARDEST], *result.hardest_impostor[:_HARDEST])
    )


def people_sheet(people: Sequence[Iterable[ImageArray]]) -> ImageArray:
    """A picture of people: a row for each of them, a column per image.

    A person with fewer images than the sheet has columns leaves the rest of the row white.
    """
    size, step = _SHEET_IMAGE, _SHEET_IMAGE + _SHEET_GAP
    shape = (len(people) * step - _SHEET_GAP, SHEET_COLUMNS * step - _SHEET_GAP, 3)
    sheet = np.full(shape, 255, dtype=np.uint8)
    for row, images in enumerate(people):
        for column, image in enumerate(images):
            top, left = row * step, column * step
            sheet[top : top + size, left : left + size] = resize(image, size)
    return sheet
