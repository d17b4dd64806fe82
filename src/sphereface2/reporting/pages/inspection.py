"""The reports of an inspection: tables for the terminal, and HTML pages that load nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sphereface2.datatools.inspect import (
    ERROR,
    GOOD,
    NOTE,
    SUSPICION,
    Finding,
    Inspected,
    Inspection,
    findings,
)
from sphereface2.datatools.inspect.faces import MAX_DISPLACEMENT, MIN_AGREEMENT
from sphereface2.datatools.inspect.inspection import EPOCHS, AugmentedImage
from sphereface2.evaluation.mislabelled import BELONGS, MislabelledResult, Suspect
from sphereface2.reporting.figures.inspection import (
    InspectionPictures,
    PictureRow,
    groups_of_copies,
    margins_figure,
    people_figure,
    sizes_figure,
    with_template,
)
from sphereface2.reporting.pages import (
    Definitions,
    Page,
    Section,
    Tile,
    blocks,
    definitions,
    jpeg_data_uri,
    png_data_uri,
)
from sphereface2.reporting.style import BLUE, to_svg
from sphereface2.workers import counted

_MARKS = {GOOD: ("ok", "green"), NOTE: ("note", ""), SUSPICION: ("suspicious", "yellow")}
_MARKS[ERROR] = ("wrong", "red")
_LISTED = 10
_TOO_CONFUSED = 0.25  # nearer to another person than to their own: the model is too weak

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
        "model is the limit: what it confuses is not named, and one trained on these "
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
        level, text = GOOD, f"None of {result.judged:,} labels stands out as wrong."
        advice = "The model is the limit: an error that it does not see is not named."
    else:
        elsewhere = sum(suspect.kind == BELONGS for suspect in result.suspects)
        right = max(suspect.chance for suspect in result.suspects)
        expected = (
            f" At most {result.false_alarms:.0%} of them are expected to be right."
            if right <= result.false_alarms
            else ""  # chosen by a threshold, which promises nothing
        )
        level = SUSPICION
        text = (
            f"{suspects:,} of {result.judged:,} images ({suspects / result.judged:.1%}) are "
            f"likely mislabelled or show no face, {elsewhere:,} of them look like another "
            f"person of the data.{expected}"
        )
        advice = (
            "Look at them; clean.txt is the list without them: data.name=list "
            "data.path=clean.txt data.root=DATA."
        )
    found += (Finding(NOTE if is_weak else level, "Labels", text, advice),)
    for count, one, more, like, what in (
        (len(result.alike), "pair of labels looks", "pairs of labels look", "one person", "Merge"),
        (len(result.split), "label looks", "labels look", "two people", "Split"),
    ):
        if count:
            text = f"{counted(count, one, more)} like {like}."
            found += (Finding(SUSPICION, "People", text, f"{what} them if that is so."),)
    return found


def inspection_page(inspected: Inspected, pictures: InspectionPictures) -> Page:
    """The page of an inspection."""
    block, data, result = blocks(), inspected.data, inspected.labels
    judged = f" · labels judged with {inspected.model}" if inspected.model else ""
    average = block.note(
        "The mean of all images. Aligned faces give a clear face whose eyes, nose and corners of "
        "the mouth lie in the rings."
    )
    picture = png_data_uri(with_template(pictures.average))
    sections = [
        Section("findings", "Findings", [block.findings(all_findings(inspected), _MARKS)]),
        Section("average", "Average face", [average, block.average(picture, _alignment(data))]),
        Section("people", "People", _people(data, pictures)),
        Section("copies", "Copies", _copies(data, pictures)),
        *([Section("labels", "Labels", _labels(result, pictures))] if result else []),
        Section("unreadable", "Unreadable", _unreadable(data)),
        definitions(DEFINITIONS),
    ]
    return Page(
        kind="inspection",
        kicker="Inspection of training data",
        title=inspected.title,
        accent=BLUE,
        head=[block.note(f"{data.path}{judged}"), block.tiles(_tiles(inspected))],
        sections=sections,
        versions=inspected.versions,
    )


def _tiles(inspected: Inspected) -> list[Tile]:
    data, people, labels = inspected.data, inspected.data.people, inspected.labels
    copies = sum(count.surplus_images for count in data.duplicates)
    across = sum(count.across_people for count in data.duplicates)
    span = f"median; {people.fewest:,} to {people.most:,}"
    tiles = [
        Tile("Images", f"{data.images:,}", f"{len(data.unreadable):,} unreadable", "main"),
        Tile("People", f"{people.people:,}", f"{people.single:,} with one image"),
        Tile("Images per person", f"{people.median:g}", span),
        Tile("Copies", f"{copies:,}", f"{across:,} groups across people"),
    ]
    if labels is not None:
        suspects = len(labels.suspects)
        share = f"{suspects / labels.judged:.1%}"
        tiles.append(Tile("Likely mislabelled", f"{suspects:,}", share))
    return tiles


def _alignment(data: Inspection) -> Definitions:
    """What stands beside the average face."""
    found, colour = data.alignment, data.colour
    # Plus 0: a value that rounds to nothing has no sign.
    right, down, turn = round(found.right, 1) + 0, round(found.down, 1) + 0, round(found.turn) + 0
    return (
        ("Agreement", f"{found.agreement:.2f} (aligned faces: about 0.3)"),
        ("Match", f"{found.match:.2f} (aligned faces: about 0.9)"),
        ("Displacement", f"{found.displacement:.1f} pixels of 112"),
        (
            "Found at",
            f"{right:+.1f} right, {down:+.1f} down, scale {found.scale:.2f}, turned {turn}°",
        ),
        (
            "Colour",
            f"{100 * colour.blue_share:.1f} % of the colour images are bluer than red in the "
            f"middle; {colour.grey_images:,} images are grey",
        ),
    )


def _people(data: Inspection, pictures: InspectionPictures) -> list[Markup]:
    block, people = blocks(), data.people
    drawn = [_svg(people_figure(people), "people"), _svg(sizes_figure(data.sizes), "sizes")]
    content = [
        block.figures(drawn),
        block.heading("Samples"),
        block.rows([_row(row) for row in pictures.samples]),
    ]
    if people.single:
        first = "; the first 40" if people.single > 40 else ""
        content += [
            block.heading("People with one image"),
            block.note(f"{people.single:,} in all{first}."),
            block.names(people.single_names[:40]),
        ]
    return content


def _copies(data: Inspection, pictures: InspectionPictures) -> list[Markup]:
    block = blocks()
    if not pictures.copies:
        return [block.empty("No image is there twice.")]
    groups, shown = groups_of_copies(data), pictures.copies
    first = f"; the first {len(shown)} groups" if len(groups) > len(shown) else ""
    rows = [
        _row(row, f"{group.kind}, {group.copies} images")
        | {"mark": "across people" if group.across_people else ""}
        for row, group in zip(shown, groups, strict=False)
    ]
    note = f"Groups across people first{first}. All are in duplicates.csv."
    return [block.note(note), block.rows(rows, "narrow")]


def _labels(result: MislabelledResult, pictures: InspectionPictures) -> list[Markup]:
    block = blocks()
    judged = (
        f"{result.judged:,} of {result.images:,} images were judged: those of people with three "
        "images or more. Suspects lie to the left of the line. The count axis is logarithmic above "
        "ten."
    )
    content = [
        block.figures([_svg(margins_figure(result), "margins")], judged),
        block.heading("Suspects"),
    ]
    suspects = [
        _row(
            row,
            row.caption,
            f"own {each.own:.2f}, other {each.other:.2f}",
            name=str(number),
            titles=(
                "image",
                f"labelled {each.person}",
                f"{'looks like' if each.kind == BELONGS else 'nearest, but far:'} "
                f"{each.other_person}",
            ),
        )
        for number, (row, each) in enumerate(
            zip(pictures.suspects, result.suspects, strict=False), start=1
        )
    ]
    if suspects:
        all_of = f"; {len(suspects)} of {len(result.suspects):,}, all are in suspects.csv"
        more = all_of if len(result.suspects) > len(suspects) else ""
        note = (
            f"The most suspicious first{more}. Left the image, then three of its label, then three "
            "of the nearest other person."
        )
        content += [block.note(note), block.rows(suspects, "wide")]
    else:
        content.append(block.empty("No label stands out."))
    alike = [
        _row(
            row,
            f"centres {pair.similarity:.2f}",
            titles=(pair.first_person, pair.second_person),
        )
        for row, pair in zip(pictures.alike, result.alike, strict=False)
    ]
    split = [
        _row(
            row,
            f"{len(each.part)} of {each.images} images in the smaller part, unity {each.unity:.2f}",
            titles=("larger part", "smaller part"),
        )
        for row, each in zip(pictures.split, result.split, strict=False)
    ]
    for title, note, rows in (
        (
            "Two labels, one person?",
            "Labels whose centres are nearer than those of two people are by chance.",
            alike,
        ),
        (
            "One label, two people?",
            "Labels whose images fall into two parts with little in common; it may also be front "
            "and side of one person.",
            split,
        ),
    ):
        if rows:
            content += [block.heading(title), block.note(note), block.rows(rows, "wide")]
    return content


def _unreadable(data: Inspection) -> list[Markup]:
    block, bad = blocks(), data.unreadable
    if not bad:
        return [block.empty("Every image can be read.")]
    first = "; the first 100" if len(bad) > 100 else ""
    note = f"{len(bad):,} in all{first}. All are in unreadable.txt."
    return [block.note(note), block.unreadable(bad[:100])]


def _row(
    row: PictureRow, *notes: str, name: str | None = None, titles: Sequence[str] = ()
) -> dict[str, Any]:
    """A row of pictures; each part may have a title."""
    parts = zip(titles or [""] * len(row.parts), row.parts, strict=True)
    return {
        "name": row.caption if name is None else name,
        "notes": notes,
        "mark": "",
        "parts": [(title, [jpeg_data_uri(image) for image in part]) for title, part in parts],
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


def _svg(figure: Figure, name: str) -> Markup:
    return to_svg(figure, name=name, description=name)


# What --augment shows.


def augmentation_page(
    images: Sequence[AugmentedImage],
    *,
    title: str,
    name: str,
    options: Mapping[str, Any],
    versions: Mapping[str, str],
) -> Page:
    """What the network will see of some images with the augmentation called `name`."""
    block = blocks()
    size = len(images[0].original) if images else 0
    settings = "\n".join(
        f"  {key}: {list(value) if isinstance(value, tuple) else value}"
        for key, value in options.items()
    )
    rows = [
        {
            "name": image.name,
            "notes": (),
            "mark": "",
            # PNG: the JPEG of a page would add to that of the augmentation.
            "parts": [
                (part, [png_data_uri(each) for each in pictures])
                for part, pictures in (
                    ("as it is", (image.original,)),
                    (f"in epochs 1 to {EPOCHS}", image.seen),
                    ("as other people (reshape)", image.others),
                )
                if pictures
            ],
        }
        for image in images
    ]
    lead = (
        f"{size} × {size} pixels, as the network gets them with seed 0, mirrored half of the time "
        "(training.flip). Evaluation sees every image as it is."
    )
    return Page(
        kind="inspection",
        kicker="What the network will see",
        title=f"{title}, augmentation {name}",
        accent=BLUE,
        head=[block.note(lead)],
        sections=[
            Section("examples", "Examples", [block.rows(rows)]),
            Section("settings", "Settings", [block.text(f"augmentation:\n{settings}")]),
        ],
        versions=versions,
    )
