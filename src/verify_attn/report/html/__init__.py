"""The report as one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from verify_attn.report.folder import Folder, Record
from verify_attn.report.verdict import Verdict
from verify_attn.whole_file import write_whole

__all__ = ["write_report"]


def write_report(
    folder: Folder,
    verdict: Verdict,
    out: Path,
    against: Record | None = None,
    others: Sequence[Record] = (),
) -> None:
    """Write the report of a run.

    ``against``: a saved sweep's record, drawn behind this one's.  ``others``: further records, such
    as benchmarks/defragmentation.py's, whose cases some section may know.  Raises OSError where
    ``out`` cannot be written (what was there stays), ImportError without the extra ``report``.
    """
    from verify_attn.report.html.page import page

    write_whole(out, page(folder, verdict, against, others).encode())
