"""The command that looks at training data before it is trained on: inspect."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.console import Watch, console, say, stdout
from sphereface2.cli.options import refuse_idle
from sphereface2.files import require_writable
from sphereface2.workers import usable_cores

if TYPE_CHECKING:
    from sphereface2.data.sources.encoded import EncodedImages
    from sphereface2.datatools.inspect import Inspected
    from sphereface2.datatools.inspect.images import ImageFacts


def inspect(
    context: typer.Context,
    data: Annotated[
        Path, typer.Argument(help="A folder of people, a list, a .rec or a .parquet file.")
    ],
    root: Annotated[
        Path | None, typer.Option(help="Where the paths of a list start; by default its folder.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A run or model folder: also look for wrong labels with it."),
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead of a model: embeddings of these images that were saved, with their names "
            "beside them (as 'extract' writes them).",
        ),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            help="Instead: show what a training would see with this augmentation (light, strong, "
            "adaface, or '{name: light, rotation: 15}')."
        ),
    ] = None,
    input_size: Annotated[
        int | None,
        typer.Option(min=8, help="The network's, for --augment; the images' own if not given."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where the report goes; inspection/NAME if not given.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads; as many as there are cores if not given.")
    ] = None,
    false_alarms: Annotated[
        float,
        typer.Option(
            help="The share of the suspects that may be labelled rightly, as far as can be "
            "expected. More finds more errors; a model that is too weak names none."
        ),
    ] = 0.1,
    threshold: Annotated[
        float | None,
        typer.Option(help="Instead: suspect all with a margin (own less other) below this."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where the model computes.")] = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of a table.")
    ] = False,
) -> None:
    """Find what is wrong with training data: sphereface2 inspect faces/ --model runs/first"""
    from sphereface2.data.sources import open_images
    from sphereface2.datatools.inspect.inspection import inspect_data

    if augment is not None:
        inspecting = ("model", "embeddings", "workers", "false_alarms", "threshold", "device")
        refuse_idle(
            context, *inspecting, "json", because="is not for --augment, which inspects nothing"
        )
        _show_augmented(data, augment, root=root, size=input_size, output=output)
        return
    refuse_idle(context, "input_size", because="is for --augment")
    if model is None:
        refuse_idle(context, "device", because="is for --model, with which labels are judged")
    elif embeddings is not None:
        refuse_idle(context, "embeddings", because="and --model exclude each other")
    if model is None and embeddings is None:
        refuse_idle(
            context,
            "false_alarms",
            "threshold",
            because="is for --model, with which labels are judged",
        )
    if threshold is not None:
        refuse_idle(context, "false_alarms", because="and --threshold exclude each other")
    if not 0 < false_alarms < 1:
        raise ValueError(f"--false-alarms must be between 0 and 1, got {false_alarms}")
    # Before the long pass over the images: what is wrong here is wrong in a second.
    embedder = None
    threads = workers or usable_cores()
    watch = Watch(console())
    if model is not None:
        from sphereface2.models.extraction import open_embedder

        embedder = open_embedder(model, workers=threads, device=device, watch=watch)
    source = open_images(data, root=root)
    folder = output or _folder(data)
    require_writable(folder)
    inspected, facts = inspect_data(
        source,
        folder,
        title=data.resolve().name,
        root=root,
        judge=embeddings if embedder is None else embedder,
        false_alarms=false_alarms,
        threshold=threshold,
        workers=threads,
        watch=watch,
    )
    page = _write_page(folder, source, inspected, facts)
    if json:
        print(inspected.to_json(), end="")
        return
    from sphereface2.reporting.pages.inspection import inspection_table

    out = stdout()
    out.print(inspection_table(inspected))
    say(out, f"report: {page}")


def _write_page(
    folder: Path, source: "EncodedImages", inspected: "Inspected", facts: "ImageFacts"
) -> Path:
    from sphereface2.data.sources.image_file import decode
    from sphereface2.reporting.figures.inspection import collect_pictures
    from sphereface2.reporting.pages.inspection import inspection_page

    pictures = collect_pictures(
        inspected,
        average=facts.average.picture(),
        labels=source.labels,
        people=source.people,
        usable=facts.readable,
        read=lambda index: decode(source.encoded(index), source.location(index), looked=True),
    )
    page = folder / "inspection.html"
    inspection_page(inspected, pictures).write(page)
    return page


def _folder(data: Path) -> Path:
    return Path("inspection") / (data.resolve().stem or "data")


def _show_augmented(
    data: Path, augment: str, *, root: Path | None, size: int | None, output: Path | None
) -> None:
    """Write the page with examples of an augmentation."""
    from sphereface2.config.loading import named, parse_yaml
    from sphereface2.data.augmentation import augmentation_options, build_augmentation
    from sphereface2.data.sources import open_images
    from sphereface2.datatools.inspect.inspection import augmented_examples
    from sphereface2.evaluation.verification import installed_versions
    from sphereface2.reporting.pages.inspection import augmentation_page

    given = named(parse_yaml(augment, origin="--augment"))
    if not isinstance(given, dict):
        raise ValueError(f"--augment must be a name, such as light, or a mapping, got '{augment}'")
    name = str(given.pop("name", "none"))
    options = augmentation_options(name, given)
    source = open_images(data, root=root)
    page = (output or _folder(data)) / f"augmentation-{name}.html"
    require_writable(page.parent)
    images = augmented_examples(source, build_augmentation(name, **options), size=size)
    versions, title = installed_versions(), data.resolve().name
    augmentation_page(images, title=title, name=name, options=options, versions=versions).write(
        page
    )
    say(console(), f"what the network will see: {page}")
