"""The command line: each command parses, calls one function and prints.

A user's mistake is one sentence on stderr and exit code 2. Nothing heavy is imported before a
command needs it, so that `--help` answers at once.
"""

import os
import re
import sys
from typing import Annotated, Any

import typer

import sphereface2
from sphereface2.cli import (
    align,
    calibrate,
    compare,
    convert,
    enroll,
    evaluate,
    export,
    extract,
    gallery,
    generate,
    group,
    identify,
    import_,
    inspect,
    listing,
    reproduce,
    serve,
    sweep,
    train,
    verify,
)
from sphereface2.cli.console import printable

app = typer.Typer(
    help="Train and evaluate face recognition with SphereFace2 and the losses it is compared with.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train)
app.command("resume")(train.resume)
app.command("sweep")(sweep.sweep)
app.command("evaluate", cls=evaluate.EvaluateCommand)(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("calibrate")(calibrate.calibrate)
app.command("extract")(extract.extract)
app.command("import")(import_.import_)
app.command("export")(export.export)
app.command("verify")(verify.verify)
app.command("enroll")(enroll.enroll)
app.command("identify")(identify.identify)
app.add_typer(gallery.app, name="gallery")
app.command("serve")(serve.serve)
app.command("group")(group.group)
app.add_typer(group.regroup, name="regroup")
app.command("generate")(generate.generate)
app.command("align")(align.align)
app.command("inspect")(inspect.inspect)
app.command("convert")(convert.convert)
app.command("reproduce")(reproduce.reproduce)
app.command("recipes")(listing.recipes)
app.command("settings")(listing.settings)
app.command("heads")(listing.heads)
app.command("backbones")(listing.backbones)
app.command("augmentations")(listing.augmentations)
app.command("sources")(listing.sources)
app.command("sets")(listing.sets)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sphereface2 {sphereface2.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the program itself; its help is given at the top, where it is made."""


def main() -> None:
    """Run the command line and turn a user's mistakes into one sentence."""
    try:
        _run()
    except KeyboardInterrupt as stop:
        print("sphereface2: stopped", file=sys.stderr)
        sys.exit(getattr(stop, "exit_code", 130))  # another signal than Ctrl-C says which
    except BrokenPipeError:
        # The reader of a pipe went away (`sphereface2 recipes | head`): nothing to report.
        _drop_output()
        sys.exit(141)
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        is_ours = isinstance(error, ValueError | OSError) or _is_out_of_memory(error)
        if os.environ.get("SPHEREFACE2_TRACEBACK") or not is_ours:
            raise
        print(f"sphereface2: {printable(_sentence(error))}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        sys.exit(2)


# Of the words themselves: an unknown option, a number that is none. Typer has no name for it.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def _run() -> None:
    code: int | None = None
    try:
        code = app(prog_name="sphereface2", standalone_mode=False)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            code = 2  # the help has been printed
        else:
            raise ValueError(_usage_sentence(error)) from None
    except typer.Abort:  # the end of the input where an answer was wanted
        raise KeyboardInterrupt from None
    finally:
        # Here rather than by Python at its very end, where an error cannot be reported.
        try:
            sys.stdout.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None
    sys.exit(code)


def _usage_sentence(error: Any) -> str:
    from pydantic import ValidationError

    from sphereface2.registry import mistake

    wrong = error.__cause__
    if isinstance(wrong, ValidationError):
        message = mistake(error.param.get_error_hint().strip("'"), wrong.errors()[0])
    else:
        message = str(error.format_message()).rstrip(".")
        message = f"{message[:1].lower()}{message[1:]}"
        for theirs, ours in _REWORDED:
            message = re.sub(theirs, ours, message)
    # Not every one of these errors knows which command it is of.
    path = "sphereface2"
    command: Any = typer.main.get_command(app)
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        path += f" {word}"
    return f"{message}; see '{path} --help'"


# Typer's words, and ours.
_REWORDED = (
    (r"\. Did you mean (.+)\?$", r" (did you mean \1?)"),
    (r" \(Possible options: (.+)\)$", r" (did you mean \1?)"),
)


def _drop_output() -> None:
    """What was printed and not written yet goes nowhere; Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that there is no memory left; torch has no kind of its own for it."""
    signs = ("allocate memory", "out of memory", "enough memory", "can't start new thread")
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in signs)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        if error.filename:
            return f"{error.filename}: {error.strerror.lower()}"
        return f"{error.strerror.lower()}; see the system's log, and run the same command again"
    if not isinstance(error, ValueError | OSError):
        said = " ".join(str(error).split())[:200]
        return (
            f"out of memory{f' ({said})' if said else ''}; take smaller batches or fewer workers, "
            "or close other programs, and run the same command again"
        )
    return " ".join(str(error).split())
