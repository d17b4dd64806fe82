"""What an evaluation leaves in its folder: the result as JSON, pair scores, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sphereface2.evaluation.protocols.measuring import Subject
from sphereface2.evaluation.protocols.protocol import ProtocolResult
from sphereface2.reporting.pages.protocols import protocol_page
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
    title, label = subject.output.name, subject.label
    protocol_page(result, title=title, label=label, published=published).write(report)
    return report
