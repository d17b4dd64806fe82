"""What an inspection means in words: each finding with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from sphereface2.datatools.inspect import Inspection, aligned_size
from sphereface2.datatools.inspect.duplicates import NEAR_IDENTICAL, SAME_BYTES
from sphereface2.datatools.inspect.faces import AlignmentCheck
from sphereface2.workers import counted

GOOD, NOTE, SUSPICION, ERROR = "good", "note", "suspicion", "error"


@dataclass(frozen=True)
class Finding:
    """One thing that is right, to be known, suspected or wrong."""

    level: str
    subject: str
    text: str
    advice: str = ""


def findings(inspection: Inspection) -> tuple[Finding, ...]:
    """All that is to be said, in the order of the page."""
    return (
        _files(inspection),
        _people(inspection),
        _sizes(inspection),
        _colour(inspection),
        _alignment(inspection),
        _copies(inspection),
        *(Finding(NOTE, "Source", note) for note in inspection.notes),
    )


def _files(inspection: Inspection) -> Finding:
    bad = len(inspection.unreadable)
    if not bad:
        return Finding(GOOD, "Files", f"All {counted(inspection.images, 'image')} can be read.")
    return Finding(
        ERROR,
        "Files",
        f"{counted(bad, 'image')} of {inspection.images:,} cannot be read.",
        "Replace or remove the files in unreadable.txt, or train with data.on_bad_image=skip.",
    )


def _people(inspection: Inspection) -> Finding:
    people = inspection.people
    text = f"{counted(people.people, 'person', 'people')} with "
    if people.fewest == people.most:
        text += f"{counted(people.most, 'image')} each."
    else:
        text += f"{people.fewest:,} to {people.most:,} images, half with {people.median:g} or more."
    if people.people < 2:
        return Finding(
            SUSPICION,
            "People",
            text,
            "A model needs at least two people: give the folder that holds a folder for each.",
        )
    if people.single:
        return Finding(
            NOTE,
            "People",
            f"{text} {counted(people.single, 'person has', 'people have')} one image only.",
            "A person with one image teaches who they are not, but not how they vary; "
            "add images or leave them out.",
        )
    return Finding(GOOD, "People", text)


def _sizes(inspection: Inspection) -> Finding:
    right = aligned_size(inspection)
    if right == inspection.readable:
        return Finding(GOOD, "Sizes", "All images are 112 × 112.")
    first = inspection.sizes[0]
    if first.images == inspection.readable and first.width == first.height:
        return Finding(
            NOTE, "Sizes", f"All images are {first.width} × {first.height}, not 112 × 112."
        )
    square = sum(size.images for size in inspection.sizes if size.width == size.height)
    return Finding(
        NOTE if square + inspection.other_sizes == inspection.readable else SUSPICION,
        "Sizes",
        f"{inspection.readable - right:,} of {inspection.readable:,} images are not 112 × 112, "
        f"{inspection.readable - square - inspection.other_sizes:,} not square; most are "
        f"{first.width} × {first.height}.",
        "Pictures that are not square are squeezed in training; "
        "`sphereface2 align IN OUT` makes 112 × 112 crops of photos.",
    )


def _colour(inspection: Inspection) -> Finding:
    colour = inspection.colour
    are = "is" if colour.grey_images == 1 else "are"
    grey = f" {colour.grey_images:,} {are} grey." if colour.grey_images else ""
    text = (
        f"{colour.blue_images:,} of {counted(colour.colour_images, 'colour image')} "
        f"({colour.blue_share:.1%}) are bluer than red in the middle.{grey}"
    )
    if colour.verdict == "swapped":
        return Finding(
            SUSPICION,
            "Colour",
            f"{text} Skin is never so blue: red and blue seem to be swapped (BGR saved as RGB).",
            "Find where the files were written and turn the channels there, e.g. cv2.imwrite wants "
            "BGR; a model trained on these is only good for faces of the same kind.",
        )
    if colour.verdict == "partly swapped":
        named = ", ".join(colour.blue_people[:3])
        return Finding(
            SUSPICION,
            "Colour",
            f"{text} A part of the data may have red and blue swapped"
            + (f", so with {named}." if named else "."),
            "Look at these images; in sound data less than one in a hundred is so.",
        )
    if colour.verdict == "not judged":
        return Finding(NOTE, "Colour", f"{text} That is too few to judge the order of channels.")
    return Finding(GOOD, "Colour", f"{text} Red and blue are in their places.")


def _alignment(inspection: Inspection) -> Finding:
    check = inspection.alignment
    if check.verdict == "not judged":
        return Finding(NOTE, "Alignment", f"{check.images} images are too few to judge it.")
    if check.verdict == "aligned":
        text = f"Eyes, nose and mouth are within {check.displacement:.1f} pixels of the template."
        return Finding(GOOD, "Alignment", text)
    advice = "Look at the average face, then align the original photos: `sphereface2 align IN OUT`."
    if check.verdict == "scattered":
        text = (
            "Eyes, noses and mouths lie at different places in different images (agreement "
            f"{check.agreement:.2f}; aligned faces have 0.3, profiles 0.16)."
        )
    elif check.verdict == "no face":
        text = (
            f"The average of the images does not look like an upright face (match {check.match:.2f}"
            "; aligned faces have 0.9)."
        )
    else:
        advice += " A model trained on these needs test images cropped in the same way."
        text = (
            f"The faces do not lie where the 112 × 112 template has them: {_displacement(check)}."
        )
    return Finding(SUSPICION, "Alignment", text, advice)


def _displacement(check: AlignmentCheck) -> str:
    parts = []
    if abs(check.right) >= 1.5:
        parts.append(
            f"{abs(check.right):.0f} pixels too far {'right' if check.right > 0 else 'left'}"
        )
    if abs(check.down) >= 1.5:
        parts.append(f"{abs(check.down):.0f} pixels too {'low' if check.down > 0 else 'high'}")
    if abs(check.scale - 1) >= 0.08:
        parts.append(f"{check.scale:.2f} times as large")
    if abs(check.turn) >= 4:
        parts.append(f"turned by {abs(check.turn):.0f}° {'left' if check.turn > 0 else 'right'}")
    return ", ".join(parts) or f"{check.displacement:.0f} pixels off"


def _copies(inspection: Inspection) -> Finding:
    same, near = inspection.copies(SAME_BYTES), inspection.copies(NEAR_IDENTICAL)
    across = same.across_people + near.across_people
    if not same.groups and not near.groups:
        return Finding(GOOD, "Copies", "No image is there twice.")
    text = (
        f"{counted(same.surplus_images, 'image')} the same as another to the byte, "
        f"{near.surplus_images:,} nearly so."
    )
    if across:
        return Finding(
            ERROR if same.across_people else SUSPICION,
            "Copies",
            f"{text} {counted(across, 'group of copies stands', 'groups of copies stand')} under "
            "several people" + (": one label is wrong." if same.across_people else "."),
            "See duplicates.csv; keep each image under one person.",
        )
    return Finding(NOTE, "Copies", text, "They do little harm in training; see duplicates.csv.")
