"""IJB-B, IJB-C and MegaFace beside the paper: its tables, and trained runs in their columns."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from sphereface2.evaluation.experiment_results import MethodRoc, SeedRun, SweepResult, SweepRow
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.protocols import PROTOCOLS
from sphereface2.evaluation.protocols.ijb import IjbResult, IjbVerification
from sphereface2.evaluation.protocols.ijb_templates import IjbIdentification
from sphereface2.evaluation.protocols.megaface import MegaFaceResult
from sphereface2.evaluation.protocols.protocol import (
    MADE,
    TRUTH,
    ProtocolResult,
    is_made,
    measure_protocol,
    require_root,
)
from sphereface2.evaluation.scoring import Subject
from sphereface2.evaluation.thresholds import Measure
from sphereface2.experiments.paper.published import BESIDE
from sphereface2.files import JsonResult, file_lock
from sphereface2.models.extraction import open_embedder
from sphereface2.models.folder import find_model, weights_digest
from sphereface2.registry import look_up
from sphereface2.reporting.pages.protocols import value_cell
from sphereface2.reporting.tables import Cell, PublishedTable, TableContent
from sphereface2.workers import Watch, unwatched

FOLDER = "protocols"
"""Below a run folder: what the run reached on each protocol."""
# What its tables are judged by: the FAR that small benchmarks resolve well, the first match.
_JUDGED = {"ijb-b": "TAR@FAR 1e-4", "ijb-c": "TAR@FAR 1e-4", "megaface": "rank-1, refined"}

# The paper's 1:N is taken for the legacy one, because it counts the people of both galleries as
# one ("# of galleries 1,875").
_IJB_PARTS = ["1:1", "1:N legacy"]

# -- our numbers by the paper's columns ------------------------------------------------------------

_Columns = dict[str, Measure]


def _at_targets(measures: Sequence[Measure], columns: Mapping[str, float]) -> _Columns:
    """The measures at the false rates that the columns stand for."""
    by_target = {each.at.target: each for each in measures if each.at is not None}
    return {name: by_target[target] for name, target in columns.items() if target in by_target}


def _ijb_columns(pairs: IjbVerification | None, search: IjbIdentification | None) -> _Columns:
    tar = {"TAR@FAR 1e-5": 1e-5, "TAR@FAR 1e-4": 1e-4, "TAR@FAR 1e-3": 1e-3}
    tpir = {"TPIR@FPIR 1e-2": 1e-2, "TPIR@FPIR 1e-1": 1e-1}
    found = {} if pairs is None else _at_targets(pairs.tar_at_far, tar)
    if search is not None:
        found |= {"rank-1": search.ranks[0], **_at_targets(search.tpir, tpir)}
    return found


def _megaface_columns(result: MegaFaceResult, kind: str) -> _Columns:
    tpr = {f"TPR@FPR 1e-6{kind}": 1e-6, f"TPR@FPR 1e-4{kind}": 1e-4}
    return {f"rank-1{kind}": result.rank_1[-1], **_at_targets(result.tpr, tpr)}


def _ijb_rows(result: IjbResult) -> dict[str, _Columns]:
    searches = {
        f"ours, {word}": _ijb_columns(result.verification, part)
        for word, part in (("1:N standard", result.standard), ("1:N legacy", result.legacy))
        if part is not None
    }
    return searches or {"ours, 1:1": _ijb_columns(result.verification, None)}


def _megaface_rows(result: MegaFaceResult) -> dict[str, _Columns]:
    refined = result.noisy_probes or result.noisy_distractors
    return {"ours": _megaface_columns(result, ", refined" if refined else "")}


_ROWS: Mapping[str, Callable[[Any], dict[str, _Columns]]] = {
    "ijb-b": _ijb_rows,
    "ijb-c": _ijb_rows,
    "megaface": _megaface_rows,
}


def published_beside(protocol: str, result: ProtocolResult) -> list[TableContent]:
    """The paper's numbers for the same protocol, ours first; none if it has none."""
    if protocol not in _ROWS:
        return []
    found = []
    for table in BESIDE[protocol]:
        ours = [
            (Cell(row, strong=True), *(value_cell(columns.get(each)) for each in table.columns))
            for row, columns in _ROWS[protocol](result).items()
        ]
        title = f"Beside the paper's numbers: {table.network} (%)"
        source = "without intervals"
        found.append(table.beside(ours, columns=table.columns, title=title, source=source))
    return found


# -- runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunOnProtocol(JsonResult):
    """What one run reached on one protocol.

    model, root: digests of the weights and of the root's description, for which it holds
    values: column -> percent, as the paper's table calls it; without what is not resolved
    roc, impostors: of the 1:1 part, the curve and the pairs behind its FAR
    """

    IS: ClassVar[str] = "the result of a run on a protocol"
    WRITTEN_BY: ClassVar[str] = "sphereface2 reproduce"

    protocol: str
    model: str
    root: str
    values: Mapping[str, float]
    roc: RocPoints
    impostors: int


def run_on_protocol(
    run: Path, protocol: str, *, root: Path, watch: Watch = unwatched
) -> RunOnProtocol:
    """Measure the model of a run, or read what was measured before with these weights and images.

    root: the folder with meta/ or templatelists/, made by `small_root` or the real one
    """
    look_up("protocol", BESIDE, protocol)
    described = _description(require_root(root, protocol))
    digest = weights_digest(find_model(run))
    kept = run / FOLDER / f"{protocol}.json"
    known = _read(kept, model=digest, root=described)
    if known is not None:
        return known
    with file_lock(
        run / FOLDER / f".{protocol}.lock",
        while_waiting=lambda: watch(f"waiting for another process on {protocol}, {run.name}"),
    ):
        known = _read(kept, model=digest, root=described)
        if known is not None:
            return known  # another process has measured it meanwhile
        # Named by what it is of: interrupted work is resumed, that of other weights is not.
        work = run / FOLDER / f".{protocol}-{digest[:8]}-{described[:8]}"
        embedder = open_embedder(run, watch=watch)
        subject = Subject(embedder, None, work, watch=watch)
        measured = (
            _megaface(subject, root) if protocol == "megaface" else _ijb(subject, protocol, root)
        )
        result = RunOnProtocol(protocol, digest, described, *measured)
        result.save(kept)
        shutil.rmtree(work)  # embeddings are large, and soon made again
    return result


def protocol_result(
    base: SweepResult,
    protocol: str,
    *,
    runs: Path,
    root: Path,
    table: PublishedTable | None = None,
    rows: Mapping[str, str] | None = None,
    watch: Watch = unwatched,
) -> SweepResult:
    """The runs of a sweep on a protocol: the same rows, with the columns of the protocol.

    runs: the folder of all run folders; a run that failed keeps its error and gets no values
    table: the paper's, by default the one of the large network
    rows: label or else method of a row -> the paper's name of it
    """
    published = table or look_up("protocol", BESIDE, protocol)[0]
    named = rows or {}

    def measured_run(run: SeedRun) -> SeedRun:
        if run.error:
            return replace(run, values={})
        found = run_on_protocol(runs / run.folder, protocol, root=root, watch=watch)
        return replace(run, values=found.values)

    measured = [
        replace(row, runs=tuple(measured_run(run) for run in row.runs)) for row in base.rows
    ]
    # Where every run failed, the table still says what it was to hold.
    found = [column for row in measured for run in row.runs for column in run.values]
    columns = tuple(dict.fromkeys(found)) or published.columns
    return replace(
        base,
        columns=columns,
        rows=tuple(
            replace(row, published=_published(row, named, published, columns)) for row in measured
        ),
        published_columns={each: each for each in columns if each in published.columns},
        judged=_JUDGED[protocol],
    )


def protocol_roc(
    base: SweepResult, protocol: str, *, runs: Path, root: Path, watch: Watch = unwatched
) -> tuple[MethodRoc, ...]:
    """The ROC curves of every row that has runs, one per seed that did not fail."""
    curves = []
    for row in base.rows:
        found = [
            run_on_protocol(runs / run.folder, protocol, root=root, watch=watch)
            for run in row.runs
            if not run.error
        ]
        if found:
            rocs = tuple(each.roc for each in found)
            curves.append(MethodRoc(row.label, rocs, found[0].impostors))
    return tuple(curves)


# -- the protocols ---------------------------------------------------------------------------------

_Measured = tuple[dict[str, float], RocPoints, int]  # columns, curve, impostor pairs


def _ijb(subject: Subject, protocol: str, root: Path) -> _Measured:
    result: Any = measure_protocol(PROTOCOLS[protocol](part=_IJB_PARTS), subject, root)
    values = _resolved(_ijb_columns(result.verification, result.legacy))
    return values, result.verification.roc, result.verification.impostors


def _megaface(subject: Subject, root: Path) -> _Measured:
    """Before and after the noisy images are left out; rendered ones are all clean."""
    lists = [root / f"{kind}_noises.txt" for kind in ("facescrub", "megaface")]
    before = [] if is_made(root) else [False]
    after = [True] if all(path.is_file() for path in lists) else []
    values: dict[str, float] = {}
    measured: list[MegaFaceResult] = []
    for refined in (*before, *after) or (False,):
        result: Any = measure_protocol(PROTOCOLS["megaface"](refined=refined), subject, root)
        measured.append(result)
        kind = ", refined" if refined else ""
        columns = _megaface_columns(result, kind)
        if not is_made(root):
            # The paper's 1e-6 of a million is one false accept per probe; of some thousand
            # strangers 1e-4 comes near to that, and is what a small network can be judged by.
            del columns[f"TPR@FPR 1e-4{kind}"]
        values |= _resolved(columns)
    last = measured[-1]
    return values, last.roc, last.probes * last.distractors


def _resolved(measures: Mapping[str, Measure]) -> dict[str, float]:
    return {
        column: 100 * measure.rate.value for column, measure in measures.items() if measure.resolved
    }


# -- what is kept, and for what it holds -----------------------------------------------------------


def _read(path: Path, *, model: str, root: str) -> RunOnProtocol | None:
    try:
        known = RunOnProtocol.load(path)
    except (FileNotFoundError, ValueError):
        return None  # not there, or of another version: measured again
    return known if (known.model, known.root) == (model, root) else None


def _description(root: Path) -> str:
    """A digest of what a made benchmark says of itself, or of the names and sizes of its lists."""
    said = [path.read_bytes() for name in (MADE, TRUTH) if (path := root / name).is_file()]
    if not said:
        # Not the whole tree: that of the images is large.
        patterns = ("meta/*", "templatelists/*", "*_noises.txt")
        lists = sorted(path for pattern in patterns for path in root.glob(pattern))
        if not lists:
            raise FileNotFoundError(
                f"{root} has neither meta/ nor templatelists/; give the folder that holds them"
            )
        said = [f"{path.relative_to(root)} {path.stat().st_size}\n".encode() for path in lists]
    return hashlib.sha256(b"".join(said)).hexdigest()


def _published(
    row: SweepRow, named: Mapping[str, str], table: PublishedTable, columns: Sequence[str]
) -> dict[str, float]:
    theirs = named.get(row.label, named.get(row.method))
    if theirs is None:
        return {}
    look_up(f"row of the paper's table {table.label}", dict(table.rows), theirs)
    numbers = {each: table.value(theirs, each) for each in columns if each in table.columns}
    return {column: number for column, number in numbers.items() if number is not None}
