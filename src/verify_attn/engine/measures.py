"""How full a pool is, and how scattered the requests in it are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from verify_attn.defrag import fragmentation
from verify_attn.paging import PageIds


@dataclass(frozen=True)
class Measures:
    """Of a pool and its running requests, at one moment.

    ``pages``               of the pool: free + cached + held
    ``cached``              in the prefix cache and held by no running request
    ``held``                by running requests; a page that several share counts once
    ``mean_runs``, ``max_runs``   stretches of consecutive pages a request; 1 is contiguous
    ``mean_run_pages``      pages a stretch, over all of them
    ``mean_spanned_pages``  from a request's lowest page to its highest
    ``scattered``           tier 0: reservations since the start for which there was no run

    With nothing running the means are 0.
    """

    pages: int
    free: int
    cached: int
    held: int
    mean_runs: float
    max_runs: int
    mean_run_pages: float
    mean_spanned_pages: float
    scattered: int


def measure(
    tables: Iterable[PageIds], *, pages: int, free: int, cached: int, scattered: int
) -> Measures:
    """Of the running requests' page tables; a request without a page does not count."""
    found = [(len(table), fragmentation(table)) for table in tables if table.size]
    runs = sum(one.runs for _, one in found)
    return Measures(
        pages=pages,
        free=free,
        cached=cached,
        held=pages - free - cached,
        mean_runs=runs / len(found) if found else 0.0,
        max_runs=max((one.runs for _, one in found), default=0),
        mean_run_pages=sum(size for size, _ in found) / runs if found else 0.0,
        mean_spanned_pages=(
            sum(one.spanned_pages for _, one in found) / len(found) if found else 0.0
        ),
        scattered=scattered,
    )
