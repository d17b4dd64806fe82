"""What an evaluation leaves in its folder: the result as JSON, pair scores, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sphereface2.evaluation.protocols.subject import Subject
from sphereface2.evaluation.views import ProtocolResult
from sphereface2.reporting.pages.protocols import write_protocol_report
from sphereface2.reporting.tables import TableContent

RESULT = "result.json"
EVALUATION = "evaluation.json"
REPORT = "report.html"


def write_protocol(
    subject: Subject, result: ProtocolResult, *, published: Sequence[TableContent] = ()
) -> Path:
    """Write a protocol's result and its report, with `published` numbers of others beside ours.

    Returns the path of the report.
    """
    result.save(subject.output / RESULT)
    report = subject.output / REPORT
    write_protocol_report(
        report,
        result,
        title=subject.output.name,
        label=subject.label,
        published=published,
    )
    return report
