"""The command that looks at training data before it is trained on: inspect."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.console import Watch, console, say
from sphereface2.cli.options import refuse_idle
from sphereface2.files import require_writable
from sphereface2.workers import usable_cores

if TYPE_CHECKING:
    from sphereface2.data.sources.encoded import EncodedImages
    from sphereface2.datatools.inspect import Inspected
    from sphereface2.datatools.inspect.duplicates import DuplicateGroup
    from sphereface2.datatools.inspect.image_facts import ImageFacts
    from sphereface2.evaluation.mislabelled import MislabelledResult
    from sphereface2.models.unit_rows import Vectors


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
            help="Of the suspects, at most this share is expected to be labelled rightly: as many "
            "are named as keep it. More finds more errors; a model too weak to tell names none."
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
    """Look for what is wrong with training data: sphereface2 inspect faces/ --model runs/first"""
    from sphereface2.data.sources import open_images
    from sphereface2.datatools.inspect import Inspected, inspect_images
    from sphereface2.datatools.inspect.image_facts import examine
    from sphereface2.evaluation.results import installed_versions

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
    loaded = None
    if model is not None:
        from sphereface2.models.folder import find_model, load_model

        model = find_model(model)
        loaded = load_model(model)
    source = open_images(data, root=root)
    folder = output or _folder(data)
    require_writable(folder)
    threads = workers or usable_cores()
    watch = Watch(console())
    with watch("looking at the images") as progress:
        facts = examine(source, workers=threads, progress=progress)
    with watch("comparing copies") as progress:
        inspection, groups = inspect_images(source, facts, progress=progress)
    labels = None
    vectors = None
    if loaded is not None and model is not None:
        from sphereface2.datatools.inspect.embeddings import embed_source, embedding_key
        from sphereface2.training.devices import choose_device

        with watch("embedding the images") as progress:
            vectors = embed_source(
                source,
                facts.readable.nonzero()[0],
                folder / "embeddings.npy",
                model=loaded,
                key=embedding_key(model, facts.digest[facts.readable]),
                device=choose_device(device),
                workers=threads,
                progress=progress,
            )
    elif embeddings is not None:
        vectors = _saved_vectors(source, facts, embeddings)
    if vectors is not None:
        labels = _judge_labels(
            source, facts, vectors, false_alarms=false_alarms, threshold=threshold, watch=watch
        )
    judge = model or embeddings
    inspected = Inspected(
        title=data.resolve().name,
        data=inspection,
        model=str(judge) if judge is not None else None,
        labels=labels,
        versions=installed_versions(),
    )
    _write(folder, source, facts, inspected, groups, root=root)
    _print(inspected, folder, as_json=json)


def _saved_vectors(source: "EncodedImages", facts: "ImageFacts", path: Path) -> "Vectors":
    """The rows of saved embeddings that are of the readable images, by their names."""
    from sphereface2.evaluation.protocols.measuring import Subject, rows_of
    from sphereface2.models.unit_rows import fold_mirror

    saved = Subject(None, path, Path()).read(path)
    names = [source.name(number) for number in facts.readable.nonzero()[0].tolist()]
    return fold_mirror(*rows_of(saved, names))


def _folder(data: Path) -> Path:
    return Path("inspection") / (data.resolve().stem or "data")


def _show_augmented(
    data: Path, augment: str, *, root: Path | None, size: int | None, output: Path | None
) -> None:
    """Write the page with examples of an augmentation."""
    from sphereface2.config.loading import named
    from sphereface2.config.yaml_text import parse_yaml
    from sphereface2.data.augmentation import augmentation_options, build_augmentation
    from sphereface2.data.sources import open_images
    from sphereface2.datatools.inspect.augmented import augmented_examples
    from sphereface2.evaluation.results import installed_versions
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


def _judge_labels(
    source: "EncodedImages",
    facts: "ImageFacts",
    vectors: "Vectors",
    *,
    false_alarms: float,
    threshold: float | None,
    watch: Watch,
) -> "MislabelledResult":
    from dataclasses import replace

    import numpy as np

    from sphereface2.evaluation.mislabelled import find_mislabelled
    from sphereface2.files import printable

    numbers = np.flatnonzero(facts.readable)
    with watch("judging the labels") as progress:
        result = find_mislabelled(
            vectors,
            source.labels[numbers],
            false_alarms=false_alarms,
            threshold=threshold,
            progress=progress,
        )
    # Rows of the embeddings are readable images; the result speaks of images of the source.
    result = replace(
        result,
        suspects=tuple(
            replace(
                suspect,
                index=int(numbers[suspect.index]),
                examples=tuple(numbers[list(suspect.examples)].tolist()),
                other_examples=tuple(numbers[list(suspect.other_examples)].tolist()),
            )
            for suspect in result.suspects
        ),
        split=tuple(
            replace(each, part=tuple(numbers[list(each.part)].tolist())) for each in result.split
        ),
    )
    return result.named(source.people, lambda index: printable(source.name(index)))


def _write(
    folder: Path,
    source: "EncodedImages",
    facts: "ImageFacts",
    inspected: "Inspected",
    groups: "Sequence[DuplicateGroup]",
    *,
    root: Path | None,
) -> None:
    """Write the page, the JSON and the lists; a list with nothing to say is taken away."""
    import numpy as np

    from sphereface2.data.sources.image_file import decode
    from sphereface2.datatools.inspect import clean_list, write_lines
    from sphereface2.files import printable
    from sphereface2.reporting.figures.inspection import collect_pictures
    from sphereface2.reporting.pages.inspection import inspection_page

    unreadable = [f"{bad.location}\t{bad.reason}\n" for bad in facts.bad]
    unreadable += [
        f"{printable(source.path / name)}\t{why}\n" for name, why in source.unread.items()
    ]
    duplicates = [
        (number, group.kind, group.across_people, source.person(i), printable(source.name(i)))
        for number, group in enumerate(groups, start=1)
        for i in group.images
    ]
    titles = ("group", "kind", "across_people", "person", "image")
    for name, lines in (
        ("unreadable.txt", unreadable),
        ("duplicates.csv", _csv_lines(titles, duplicates) if duplicates else []),
    ):
        if lines:
            write_lines(folder / name, lines)
        else:
            (folder / name).unlink(missing_ok=True)
    if inspected.labels is not None:
        rows = [
            (s.image, s.person, s.kind, s.other_person, f"{s.own:.4f}", f"{s.other:.4f}", s.chance)
            for s in inspected.labels.suspects
        ]
        head = ("image", "person", "kind", "nearest_other", "own", "other", "chance")
        write_lines(folder / "suspects.csv", _csv_lines(head, rows))
        left = facts.readable.copy()
        left[[suspect.index for suspect in inspected.labels.suspects]] = False
        kept = np.flatnonzero(left).tolist()
        write_lines(folder / "clean.txt", clean_list(source, kept, root=root))
    pictures = collect_pictures(
        inspected,
        average=facts.average.picture(),
        labels=source.labels,
        people=source.people,
        usable=facts.readable,
        read=lambda index: decode(source.encoded(index), source.location(index), looked=True),
    )
    inspection_page(inspected, pictures).write(folder / "inspection.html")
    inspected.save(folder / "inspection.json")


def _csv_lines(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)
    return [text.getvalue()]


def _print(inspected: "Inspected", folder: Path, *, as_json: bool) -> None:
    if as_json:
        print(inspected.to_json(), end="")
        return
    from rich.console import Console

    from sphereface2.reporting.pages.inspection import inspection_table

    out = Console()
    out.print(inspection_table(inspected))
    say(out, f"report: {folder / 'inspection.html'}")
