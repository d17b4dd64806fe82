"""The command that judges a model or saved embeddings: evaluate."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from sphereface2.cli.console import RESUMES, Watch, all_ranks, console, rank, say, stdout, stoppable
from sphereface2.cli.options import (
    BatchSize,
    Device,
    Flip,
    Workers,
    checked_missing,
    given_options,
    readers,
    refuse_idle,
)
from sphereface2.files import require_writable

if TYPE_CHECKING:
    from sphereface2.data.pairs.verification_set import Missing
    from sphereface2.evaluation.protocols.protocol import Protocol, ProtocolResult
    from sphereface2.evaluation.scoring import Subject
    from sphereface2.runs.evaluate import Evaluated


def evaluate(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A run or model folder; none with --embeddings."),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE|SET",
            help="For a run on its own sets: changes to its config. With --on: further sets.",
        ),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET...",
            help="Verification sets: .bin, pairs.txt, a pair list, a folder, .rec or .parquet of "
            "people, or 'synthetic'.",
        ),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option()  # its help lists them, see EvaluateCommand
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(
            help="Saved embeddings: .npy, .npz, .pt, or a folder (see docs/protocols.md)."
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="The folder of the protocol, or of the images of a list.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Where to write; if not given, below evaluations/, or the run for its own sets."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="<last|best>",
            help="For a run on its own sets: one of its checkpoints in place of the model that it "
            "exported.",
        ),
    ] = None,
    mirrored: Annotated[
        bool,
        typer.Option(
            "--mirrored", help="A row of --embeddings is an image's, then its mirror image's."
        ),
    ] = False,
    missing: Annotated[
        str,
        typer.Option(
            help="Images without an embedding, or that cannot be read: 'error', or 'skip' (left "
            "out and counted)."
        ),
    ] = "error",
    flip: Flip = None,
    workers: Workers = None,
    batch_size: BatchSize = 256,
    device: Device = "auto",
) -> None:
    """Judge a model, or saved embeddings: print a table, write the result and an HTML report.

    sphereface2 evaluate RUN key=value ...                   on the sets of its own config

    sphereface2 evaluate MODEL --on lfw.bin agedb_30.bin     on verification sets

    sphereface2 evaluate MODEL --protocol ijb-c --root DIR   on a benchmark

    sphereface2 evaluate --embeddings X.npy --protocol ijb-c --root DIR
    """
    given = [word for word in (model, *(words or [])) if word is not None]
    asked = _protocol(context, protocol)
    _refuse_idle_options(context, protocol=asked, on=on, embeddings=embeddings)
    if not on and protocol is None and embeddings is None:
        _evaluate_run(given, given_options(context))
        return
    if embeddings is not None and rank() != 0:
        return  # saved embeddings are for one process
    with stoppable(), nullcontext() if embeddings is not None else all_ranks(after_loss=RESUMES):
        from sphereface2.training.distributed import current_team

        judged, sets = _sort_words(given, on or [], embeddings=embeddings)
        _refuse_mixtures(sets, protocol=protocol, judged=judged, embeddings=embeddings)
        with current_team().together():
            subject = _subject(
                judged,
                embeddings,
                output=output,
                what=protocol or _joined(sets),
                flip=flip,
                workers=readers(workers),
                batch_size=batch_size,
                device=device,
                missing=checked_missing(missing),
                mirrored=mirrored or None,
            )
        if asked is not None:
            _evaluate_protocol(subject, asked, root=root)
        else:
            from sphereface2.experiments.paper.published import LOSSES
            from sphereface2.runs.evaluate import evaluate_on

            evaluated = evaluate_on(subject, sets, root=root, published=LOSSES)
            if evaluated is not None:  # else rank 0 has it
                _print_verification(evaluated)


# -- what is asked -------------------------------------------------------------------------------

# The keys of a run's config that options set.
_KEYS = {
    "flip": "evaluation.flip",
    "batch_size": "evaluation.batch_size",
    "workers": "training.workers",
    "device": "device",
}


class EvaluateCommand(TyperCommand):
    """The command with the options of every protocol, which their signatures hold."""

    def get_params(self, ctx: Any) -> list[Any]:
        from sphereface2.evaluation.protocols import PROTOCOLS

        own: list[Any] = super().get_params(ctx)
        for option in own:
            if option.name == "protocol":
                option.help = f"{', '.join(PROTOCOLS)}; their own options are listed below."
        return [*own, *_protocol_options()]

    def invoke(self, ctx: Any) -> Any:
        # `evaluate` has no arguments for them: it finds those that are given here.
        given = given_options(ctx)
        ctx.obj = {name: given[name] for name in _takers() if name in given}
        for name in _takers():
            del ctx.params[name]
        return super().invoke(ctx)


@cache
def _protocol_options() -> list[Any]:
    """An option for every name that a protocol has, as typer makes it; built when asked for.

    Values are checked when the protocol is built, with the nearest right spelling.
    """
    from sphereface2.evaluation.protocols import PROTOCOLS

    parameters = []
    for name, takers in _takers().items():
        hints = get_type_hints(PROTOCOLS[takers[0]].__init__, include_extras=True)
        kind, text = get_args(hints[name])
        plain = [each for each in (kind, *get_args(kind)) if each in (bool, int, float, list[str])]
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            help=f"{', '.join(takers)}: {text}.",
            rich_help_panel="Options of protocols",
        )
        hint: Any = Annotated[(plain[0] if plain else str) | None, option]
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint))

    def options() -> None:
        """Typer reads the signature alone."""

    options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # inspect looks for it
    app = typer.Typer(add_completion=False)
    app.command()(options)
    return typer.main.get_command(app).params


def _takers() -> dict[str, list[str]]:
    """The options of all protocols, each with the protocols that have it."""
    from sphereface2.evaluation.protocols import PROTOCOLS
    from sphereface2.registry import option_names

    found: dict[str, list[str]] = {}
    for protocol, factory in PROTOCOLS.items():
        for name in option_names(factory):
            found.setdefault(name, []).append(protocol)
    return found


def _protocol(context: typer.Context, name: str | None) -> "Protocol[Any] | None":
    """The protocol that is asked for, with its options; refuses those of others."""
    from sphereface2.evaluation.protocols import PROTOCOLS
    from sphereface2.registry import look_up, resolve_options

    if name is not None:
        look_up("protocol", PROTOCOLS, name)
    for option, takers in _takers().items():
        if option in context.obj and name not in takers:
            flag = option.replace("_", "-")
            raise ValueError(f"--{flag} is for --protocol {' or '.join(takers)}; leave it out")
    if name is None:
        return None
    factory = PROTOCOLS[name]
    return factory(**resolve_options("protocol", name, factory, context.obj))


def _refuse_idle_options(
    context: typer.Context,
    *,
    protocol: "Protocol[Any] | None",
    on: Sequence[str] | None,
    embeddings: Path | None,
) -> None:
    """Refuse options that what is asked would not look at."""
    if on or protocol is not None or embeddings is not None:
        refuse_idle(context, "checkpoint", because="is for a run on its own sets; leave it out")
    if embeddings is None:
        refuse_idle(context, "mirrored", because="is for --embeddings")
    else:
        refuse_idle(
            context, *_KEYS, because="is for a model that embeds images, not for --embeddings"
        )
        if protocol is None or protocol.saved:
            refuse_idle(context, "root", because="is for images, which --embeddings does not need")
    if not on and protocol is None:
        refuse_idle(
            context,
            "root",
            because="is for --protocol and for lists of pairs after --on; the sets of a run have "
            "their own, as evaluation.sets.0.root=DIR",
        )


def _evaluate_run(given: Sequence[str], options: Mapping[str, Any]) -> None:
    if rank() != 0:
        return  # one process is enough, and torchrun may have started more
    if not given:
        raise ValueError(
            "there is nothing to judge: give a run folder, a MODEL with --on or --protocol, or "
            "--embeddings"
        )
    from sphereface2.experiments.paper.published import LOSSES
    from sphereface2.models.folder import NETWORKS, find_model
    from sphereface2.registry import look_up
    from sphereface2.runs.evaluate import evaluate as evaluate_run
    from sphereface2.training.result import Which

    if "checkpoint" in options:
        look_up("--checkpoint", dict.fromkeys(get_args(Which)), options["checkpoint"])
    folder = Path(given[0])
    if _is_onnx(folder):
        folder = find_model(folder)
    if any((folder / name).is_file() for name in NETWORKS):
        raise ValueError(
            f"{folder} is a model folder, which has no sets of its own: name some with --on, or a "
            "benchmark with --protocol"
        )
    for word in given[1:]:
        if "=" not in word and Path(word).exists():
            raise ValueError(
                f"'{word}' is not KEY=VALUE; to judge the model on it, use --on {word}"
            )
    changes = [f"{_KEYS[name]}={options[name]}".lower() for name in _KEYS if name in options]
    evaluated = evaluate_run(
        folder,
        overrides=[*given[1:], *changes],
        output=options.get("output"),
        missing=checked_missing(options["missing"]) if "missing" in options else None,
        checkpoint=options.get("checkpoint"),
        published=LOSSES,
        watch=Watch(console()),
    )
    _print_verification(evaluated)


def _print_verification(evaluated: "Evaluated") -> None:
    from sphereface2.reporting.tables import accuracy_content, detail_content

    out, result = stdout(), evaluated.result
    out.print(accuracy_content(result))
    if result.step_in_words:
        say(out, f"checkpoint: {result.step_in_words}")
    out.print()
    out.print(detail_content(result))
    for note in result.notes:
        say(out, note, style="yellow")
    say(out, f"report: {evaluated.report}")


def _sort_words(
    given: Sequence[str], on: Sequence[str], *, embeddings: Path | None
) -> tuple[Path | None, list[str]]:
    """The model among the words, and the sets: `--on` takes one word only, the rest are here."""
    from sphereface2.models.extraction import is_model

    changes = [word for word in given if "=" in word and not Path(word).exists()]
    if changes:
        raise ValueError(
            f"'{changes[0]}' changes the config of a run; with --on, --protocol and --embeddings "
            "use the options (--help lists them)"
        )
    chosen = next((word for word in given if is_model(Path(word)) or _is_onnx(Path(word))), None)
    if chosen is None and embeddings is None:
        # What is not a file may be a misspelt model; saved embeddings need none.
        chosen = next((word for word in given if not Path(word).is_file()), None)
    rest = list(given)
    if chosen is not None:
        rest.remove(chosen)
    return (None if chosen is None else Path(chosen)), [*on, *rest]


def _is_onnx(path: Path) -> bool:
    return path.suffix.lower() == ".onnx" and path.is_file()


def _refuse_mixtures(
    sets: Sequence[str], *, protocol: str | None, judged: Path | None, embeddings: Path | None
) -> None:
    if protocol is not None:
        if sets:
            raise ValueError(f"--protocol {protocol} has its own images; leave out {sets[0]}")
    elif not sets:
        raise ValueError("say what to judge it on: --on SET or --protocol NAME --root DIR")
    if judged is None and embeddings is None:
        raise ValueError("there is nothing to judge: give a MODEL or --embeddings FILE")


def _subject(
    judged: Path | None,
    embeddings: Path | None,
    *,
    output: Path | None,
    what: str,
    missing: "Missing",
    mirrored: bool | None,
    **options: Any,
) -> "Subject":
    from sphereface2.evaluation.scoring import Subject
    from sphereface2.models.extraction import open_embedder

    watch = Watch(console())
    if embeddings is not None and not embeddings.exists():
        raise FileNotFoundError(f"--embeddings: there is no file or folder {embeddings}")
    embedder = None
    if judged is not None:
        embedder = open_embedder(judged, watch=watch, missing=missing, **options)
    subject = Subject(embedder, embeddings, output or Path(), watch, missing, mirrored)
    place = output or Path("evaluations") / f"{subject.name}-{what}"
    require_writable(place)
    return replace(subject, output=place)


def _joined(sets: Sequence[str]) -> str:
    names = "+".join(Path(word).stem for word in sets)
    return names if len(names) <= 60 else f"{names[:57]}..."


# -- what is done --------------------------------------------------------------------------------


def _evaluate_protocol(subject: "Subject", protocol: "Protocol[Any]", *, root: Path | None) -> None:
    from sphereface2.evaluation.protocols.protocol import is_made, measure_protocol
    from sphereface2.experiments.paper.protocols import published_beside
    from sphereface2.runs.evaluate import write_protocol

    result = measure_protocol(protocol, subject, root)
    if result is None:
        return  # rank 0 has it
    is_real = not is_made(root or subject.embeddings)
    published = published_beside(protocol.name, result) if is_real else []
    _print_protocol(result, write_protocol(subject, result, published=published))


def _print_protocol(result: "ProtocolResult", report: Path) -> None:
    from sphereface2.reporting.pages.protocols import measures_content, table_content

    out = stdout()

    def print_lines(lines: Sequence[str]) -> None:
        for line in lines:
            say(out, f"  · {line}", wrap=True)

    parts = result.view().parts
    for part in parts:
        if part.measures:
            out.print(measures_content(part.title, part.measures))
        for table in part.tables:
            out.print()
            out.print(table_content(table))
        print_lines(part.conventions)
        if part.conventions:
            out.print()
    if any(part.conventions for part in parts):
        say(out, f"all of {result.protocol}:", wrap=True)
    print_lines(result.conventions)
    say(out, f"report: {report}")
