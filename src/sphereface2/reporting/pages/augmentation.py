"""The page of an augmentation: images as they are, and as a training sees them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sphereface2.datatools.inspect.augmented import EPOCHS, AugmentedImage
from sphereface2.reporting.pages.page import Page, Section, blocks, png_data_uri
from sphereface2.reporting.style import BLUE


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
    settings = "\n".join(f"  {key}: {_text(value)}" for key, value in options.items())
    rows = [
        {
            "name": image.name,
            "notes": (),
            "mark": "",
            # PNG: the JPEG of a page would add to that of the augmentation.
            "parts": [
                ("as it is", [png_data_uri(image.original)]),
                (f"in epochs 1 to {EPOCHS}", [png_data_uri(each) for each in image.seen]),
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


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
