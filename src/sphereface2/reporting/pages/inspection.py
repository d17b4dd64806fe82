"""The report of an inspection: tables for the terminal and one HTML page that loads nothing."""

from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sphereface2.datatools.inspect.faces import MAX_DISPLACEMENT, MIN_AGREEMENT
from sphereface2.datatools.inspect.findings import ERROR, GOOD, NOTE, SUSPICION, Finding, findings
from sphereface2.datatools.inspect.inspection import Inspected
from sphereface2.evaluation.mislabelled import BELONGS, Suspect
from sphereface2.files import write_atomically
from sphereface2.reporting.figures import inspection as inspection_plots
from sphereface2.reporting.figures import verification as plots
from sphereface2.reporting.inspection_pictures import (
    InspectionPictures,
    PictureRow,
    jpeg_data_uri,
    with_template,
)
from sphereface2.reporting.pages.page import render_page
from sphereface2.reporting.pictures import png_data_uri

_MARKS = {GOOD: ("ok", "green"), NOTE: ("note", ""), SUSPICION: ("suspicious", "yellow")}
_MARKS[ERROR] = ("wrong", "red")
_LISTED = 10
_TOO_CONFUSED = 0.25  # nearer to another person than to their own: the model is too weak

SECTIONS = (
    ("findings", "Findings"),
    ("average", "Average face"),
    ("people", "People"),
    ("copies", "Copies"),
    ("labels", "Labels"),
    ("unreadable", "Unreadable"),
    ("definitions", "Definitions"),
)

DEFINITIONS = (
    (
        "Near-identical",
        "Pictures whose hashes (the signs of their 128 slowest waves) differ in at most 12 bits "
        "and whose structures correlate by more than 0.91. The same photo saved again, scaled or "
        "brightened is found; one that was mirrored or cropped by more than some two pixels is "
        "not.",
    ),
    (
        "Colour order",
        "Skin reflects more red than blue, whatever its tone. If the middle of most colour images "
        "is bluer than red, red and blue are swapped. Stage light and cartoons break the rule for "
        "single images, not for most of them.",
    ),
    (
        "Agreement",
        "The mean correlation between two images of what is as large as an eye. Aligned faces "
        f"have some 0.3; below {MIN_AGREEMENT} the faces do not lie at one place.",
    ),
    (
        "Displacement",
        "A drawn face of eyes, nose and mouth is moved, scaled and turned until it fits the "
        "average best; the displacement is the mean distance of its five points from the "
        f"112 × 112 template. More than {MAX_DISPLACEMENT:g} pixels are suspicious; shifts up to 5 "
        "pixels and faces larger by up to 20 % may pass. Profiles alone have no such average and "
        "are suspected wrongly; one person alone is judged less surely.",
    ),
    (
        "Margin",
        "Similarity (cosine) to the centre of the image's own person less that to the nearest "
        "other centre. The own centre is made of the person's other images without the least "
        "typical fifth.",
    ),
    (
        "Suspects",
        "Images with a negative margin, of each kind as many as keep the stated share of false "
        "alarms. Right images are expected among them as follows. Nobody here: the right images "
        "thin out towards a margin of 0, and this is continued below it; where many hard ones "
        "(profiles, blur) lie close to 0, none is named. Belongs to another: as many right images "
        "with a margin below -t as there are above t among those that look like two people, or "
        "twice as many as a normal scatter of all margins has there, if that is less. The "
        "model is the limit: what it cannot tell apart is not named, and one trained on these "
        "very labels has learnt some of the errors.",
    ),
)


def inspection_table(inspected: Inspected) -> RenderableType:
    """The findings, and the first suspects, for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in all_findings(inspected):
        word, colour = _MARKS[finding.level]
        # Text, not markup: names may hold square brackets.
        text = Text(finding.text)
        if finding.advice:
            text.append(f"\n{finding.advice}", style="dim")
        table.add_row(Text(word, style=colour), Text(finding.subject, style="bold"), text)
    parts: list[RenderableType] = [Text(inspected.title, style="bold"), table]
    if inspected.labels is not None and inspected.labels.suspects:
        parts += [Text(), _suspects_table(inspected.labels.suspects)]
    return Group(*parts)


def all_findings(inspected: Inspected) -> tuple[Finding, ...]:
    """What the data and, with a model, the labels have to say."""
    found = findings(inspected.data)
    result = inspected.labels
    if result is None:
        return found
    suspects = len(result.suspects)
    is_weak = not result.is_able or result.confused > _TOO_CONFUSED
    if is_weak:
        found += (
            Finding(
                NOTE,
                "Model",
                f"The model takes {result.confused:.0%} of the images for another person, so it "
                + ("sees the clearest errors only." if result.is_able else "cannot judge labels."),
                "Give a stronger model, or look at the lowest margins with --threshold.",
            ),
        )
    if not suspects:
        found += (
            Finding(
                NOTE if is_weak else GOOD,
                "Labels",
                f"None of {result.judged:,} labels stands out as wrong.",
                "The model is the limit: an error that it does not see is not named.",
            ),
        )
    else:
        elsewhere = sum(suspect.kind == BELONGS for suspect in result.suspects)
        right = max(suspect.chance for suspect in result.suspects)
        expected = (
            f" At most {result.false_alarms:.0%} of them are expected to be right."
            if right <= result.false_alarms
            else ""  # chosen by a threshold, which promises nothing
        )
        found += (
            Finding(
                NOTE if is_weak else SUSPICION,
                "Labels",
                f"{suspects:,} of {result.judged:,} images ({suspects / result.judged:.1%}) are "
                f"likely mislabelled or show no face, {elsewhere:,} of them look like another "
                f"person of the data.{expected}",
                "Look at them; clean.txt is the list without them: data.name=list "
                "data.path=clean.txt data.root=DATA.",
            ),
        )
    for count, one, more, advice in (
        (len(result.alike), "pair of labels looks", "pairs of labels look", "Merge them"),
        (len(result.split), "label looks", "labels look", "Split them"),
    ):
        if count:
            like = "like one person" if advice.startswith("Merge") else "like two people"
            text = f"{count:,} {one if count == 1 else more} {like}."
            found += (Finding(SUSPICION, "People", text, f"{advice} if that is so."),)
    return found


def write_inspection(path: Path, inspected: Inspected, pictures: InspectionPictures) -> None:
    """Write the page to `path`, all of it or nothing."""
    write_atomically(path, render_inspection(inspected, pictures))


def render_inspection(inspected: Inspected, pictures: InspectionPictures) -> str:
    """The page as a string."""
    data, result = inspected.data, inspected.labels
    sections = [section for section in SECTIONS if section[0] != "labels" or result]
    return render_page(
        "inspection.html.jinja",
        title=inspected.title,
        accent=plots.method_colour("sphereface2"),
        sections=sections,
        path=data.path,
        model=inspected.model,
        data=data,
        result=result,
        marks={level: word for level, (word, _) in _MARKS.items()},
        tiles=_tiles(inspected),
        findings=all_findings(inspected),
        people_figure=_svg(inspection_plots.people_figure(data.people), "people"),
        sizes_figure=_svg(inspection_plots.sizes_figure(data.sizes), "sizes"),
        margins_figure=(
            _svg(inspection_plots.margins_figure(result), "margins") if result else None
        ),
        average=png_data_uri(with_template(pictures.average)),
        samples=[_row(row) for row in pictures.samples],
        copies=[_row(row) for row in pictures.copies],
        groups=sorted(
            (group for count in data.duplicates for group in count.named),
            key=lambda group: not group.across_people,
        ),
        suspects=[_row(row) for row in pictures.suspects],
        alike=[_row(row) for row in pictures.alike],
        split=[_row(row) for row in pictures.split],
        definitions=DEFINITIONS,
        versions=list(inspected.versions.items()),
    )


def _tiles(inspected: Inspected) -> list[dict[str, str]]:
    data = inspected.data
    copies = sum(count.surplus_images for count in data.duplicates)
    tiles = [
        _tile("Images", f"{data.images:,}", f"{len(data.unreadable):,} unreadable", "main"),
        _tile("People", f"{data.people.people:,}", f"{data.people.single:,} with one image"),
        _tile("Images per person", f"{data.people.median:g}", _span(inspected)),
        _tile("Copies", f"{copies:,}", f"{_across(inspected):,} groups across people"),
    ]
    if inspected.labels is not None:
        share = len(inspected.labels.suspects) / inspected.labels.judged
        tiles.append(
            _tile("Likely mislabelled", f"{len(inspected.labels.suspects):,}", f"{share:.1%}")
        )
    return tiles


def _tile(label: str, value: str, note: str, style: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "note": note, "style": style}


def _span(inspected: Inspected) -> str:
    return f"median; {inspected.data.people.fewest:,} to {inspected.data.people.most:,}"


def _across(inspected: Inspected) -> int:
    return sum(count.across_people for count in inspected.data.duplicates)


def _row(row: PictureRow) -> dict[str, Any]:
    return {
        "caption": row.caption,
        "parts": [[jpeg_data_uri(image) for image in part] for part in row.parts],
    }


def _suspects_table(suspects: tuple[Suspect, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title, right in (("suspect", False), ("own", True), ("other", True), ("looks like", False)):
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for suspect in suspects[:_LISTED]:
        table.add_row(
            Text(suspect.image),
            f"{suspect.own:.2f}",
            f"{suspect.other:.2f}",
            Text(suspect.other_person if suspect.kind == BELONGS else "nobody here"),
        )
    if len(suspects) > _LISTED:
        table.caption = f"{len(suspects) - _LISTED:,} more in suspects.csv"
        table.caption_justify = "left"
    return table


def _svg(figure: Any, name: str) -> Markup:
    # matplotlib escapes the text inside a figure, `to_svg` its description.
    return Markup(plots.to_svg(figure, name=name, description=name))
