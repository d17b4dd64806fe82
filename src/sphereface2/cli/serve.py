"""The command that serves a model over HTTP: serve."""

from pathlib import Path
from typing import Annotated

import typer

from sphereface2.cli.options import Flip


def serve(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", envvar="SPHEREFACE2_MODEL", help="A run or a model folder."
        ),
    ],
    gallery: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="SPHEREFACE2_GALLERY",
            help="Where people are kept: a folder, postgresql://..., qdrant://...; without it "
            "nobody can be enrolled.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="API keys, one per line: NAME read|write KEY. Or SPHEREFACE2_KEYS in the "
            "environment. Needed on every address but this machine's own.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes; each loads the model.")] = 1,
    false_accepts: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Where a request does not say: 1e-4, 0.01%, '1 in 10,000'; 1 in 1,000 if not "
            "given.",
        ),
    ] = None,
    detector: Annotated[str, typer.Option(help="mtcnn or yunet.")] = "mtcnn",
    flip: Flip = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Web pages of this origin may call, such as https://example.org; may be repeated.",
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="Believe X-Forwarded-For of this proxy; may be repeated."
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(min=0, help="Requests per second for each key or address; 0: no limit."),
    ] = 100.0,
    burst: Annotated[int, typer.Option(min=1, help="Requests at once after a pause.")] = 200,
    max_upload: Annotated[
        float, typer.Option(min=0.001, help="Megabytes of a request, at most.")
    ] = 20.0,
    max_pixels: Annotated[
        float, typer.Option(min=0.001, help="Millions of pixels in a photo, at most.")
    ] = 50.0,
    max_faces: Annotated[int, typer.Option(min=1, help="Faces in a photo, at most.")] = 100,
    max_batch: Annotated[int, typer.Option(min=1, help="Faces for the network at once.")] = 32,
    max_pending: Annotated[
        int, typer.Option(min=1, help="Requests in progress or waiting; beyond that: 429.")
    ] = 64,
    deadline: Annotated[
        float, typer.Option(min=0.001, help="Seconds until a request is given up: 503.")
    ] = 30.0,
) -> None:
    """Serve a model over HTTP, with a page: sphereface2 serve MODEL --gallery people

    SIGTERM and Ctrl-C finish the requests that were accepted. docs/serving.md has the routes.
    """
    from sphereface2.evaluation.decision import share_in_words
    from sphereface2.workers import install_command

    try:
        from sphereface2.service.server import serve
        from sphereface2.service.settings import Settings
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sphereface2"):
            raise
        raise ValueError(f"serving needs packages: {install_command('serve')}") from None
    serve(
        Settings(
            model=model,
            gallery=gallery,
            host=host,
            port=port,
            keys=keys,
            workers=workers,
            false_accepts=None if false_accepts is None else share_in_words(false_accepts),
            detector=detector,
            flip=flip,
            origins=tuple(origin or ()),
            proxies=tuple(proxy or ()),
            rate=rate,
            burst=burst,
            max_upload=round(max_upload * 1e6),
            max_pixels=round(max_pixels * 1e6),
            max_faces=max_faces,
            max_batch=max_batch,
            max_pending=max_pending,
            deadline=deadline,
        )
    )
