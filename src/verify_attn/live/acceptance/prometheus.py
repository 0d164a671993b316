"""Prometheus and OpenMetrics text, by the parser of prometheus_client.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and the OpenMetrics 1.0
specification.  Labels hold escaped quotes, commas and braces, so nothing is split by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as classic
from prometheus_client.samples import Sample as RawSample

from verify_attn.live.absent import Absent
from verify_attn.live.reply import Fetch, Reply, Unreachable

Labels = frozenset[tuple[str, str]]

# The library leaves this one without annotations.
openmetrics: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families

# A second of parsing, while which no stream runs; real ones have some hundred kilobytes.
MAX_BYTES = 8 * 2**20
# A switch each engine wants before it shows its counters; an answer of 404 mostly means that.
_SWITCHES = "SGLang needs --enable-metrics, llama.cpp --metrics"


@dataclass(frozen=True)
class Sample:
    """One series at one moment.  Its timestamp is left out.

    The classic parser reads an exemplar as a timestamp, and no reader here needs either.
    """

    name: str
    labels: Labels
    value: float

    def label(self, name: str) -> str | None:
        """The value of one label, or None."""
        return dict(self.labels).get(name)


class Samples:
    """The finite samples of one scrape; names match with and without ``_total``."""

    def __init__(self, samples: Iterable[Sample], created: Mapping[str, frozenset[float]]) -> None:
        self._by_name: dict[str, dict[Labels, float]] = {}
        for sample in samples:
            self._by_name.setdefault(sample.name, {})[sample.labels] = sample.value
        self._created = dict(created)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def names(self) -> frozenset[str]:
        """Sample names as the server wrote them, ``_created`` left out."""
        return frozenset(self._by_name)

    def series(self, name: str, **labels: str) -> dict[Labels, float]:
        """Labels -> value of every series of this name that carries the labels given."""
        wanted = set(labels.items())
        return {key: value for key, value in self._named(name).items() if wanted <= key}

    def sum(self, name: str, **labels: str) -> float | None:
        """The sum over every matching series; None where there is none or it is not finite."""
        found = self.series(name, **labels).values()
        total = sum(found)
        return total if found and math.isfinite(total) else None

    def by_label(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums by the values of one label; series without that label are left out."""
        found: dict[str, float] = {}
        for key, value in self.series(name, **labels).items():
            at = dict(key).get(label)
            if at is not None:
                found[at] = found.get(at, 0.0) + value
        return {at: value for at, value in found.items() if math.isfinite(value)}

    def has_prefix(self, prefix: str) -> bool:
        """Whether any sample's name starts so."""
        return any(name.startswith(prefix) for name in self._by_name)

    def created(self, name: str) -> frozenset[float]:
        """When these counters began (Unix s), from their ``_created`` twins; empty if unsaid."""
        return self._created.get(name.removesuffix("_total"), frozenset())

    def _named(self, name: str) -> dict[Labels, float]:
        # The exact name first: were both spellings there, adding them would count twice.
        other = name.removesuffix("_total") if name.endswith("_total") else f"{name}_total"
        return self._by_name.get(name) or self._by_name.get(other) or {}


def parse_metrics(reply: Reply) -> Samples | Absent:
    """The samples of one answer, or `Absent` ("metrics unavailable: ...") for anything else."""
    if not reply.ok:
        return Absent(f"metrics unavailable: HTTP {reply.status}{_hint(reply.status)}")
    if len(reply.body) > MAX_BYTES:
        size = len(reply.body)
        return Absent(
            f"metrics unavailable: {size:,} bytes, more than {MAX_BYTES:,}, were not read"
        )
    text = reply.text.removeprefix("\ufeff")
    if "html" in reply.content_type or text.lstrip()[:1] in ("<", "{", "["):
        return Absent("metrics unavailable: the answer is a page or JSON, no Prometheus text")
    try:
        samples, created = _parse(text, reply.content_type)
    except Exception as error:  # the parser slices and raises what its slices raise
        return Absent(f"metrics unavailable: no Prometheus text ({_short(error)})")
    if not samples:
        return Absent("metrics unavailable: the answer holds no sample")
    return Samples(samples, created)


async def read_metrics(
    fetch: Fetch, path: str = "/metrics", *, timeout_s: float = 10.0
) -> Samples | Absent:
    """One scrape; an unreachable server is `Absent` too, since the caller probes life itself."""
    try:
        reply = await fetch("GET", path, timeout_s=timeout_s)
    except Unreachable as error:
        return Absent(f"metrics unavailable: {path}: {error}")
    return parse_metrics(reply)


def _parse(text: str, content_type: str) -> tuple[list[Sample], dict[str, frozenset[float]]]:
    if "openmetrics" in content_type:
        try:
            return _kept(sample for family in openmetrics(text) for sample in family.samples)
        except Exception:
            # Servers announce OpenMetrics and leave out "# EOF" or break another of its rules;
            # the classic parser then still reads the values.
            pass
    return _kept(sample for family in classic(text) for sample in family.samples)


def _kept(raw: Iterable[RawSample]) -> tuple[list[Sample], dict[str, frozenset[float]]]:
    samples: list[Sample] = []
    created: dict[str, frozenset[float]] = {}
    for sample in raw:
        value = float(sample.value)
        if not math.isfinite(value) or not sample.name:
            continue
        if sample.name.endswith("_created"):
            # A moment, no count: kept apart, since a later one means that the server restarted.
            name = sample.name.removesuffix("_created")
            created[name] = created.get(name, frozenset()) | {value}
        else:
            samples.append(Sample(sample.name, frozenset(sample.labels.items()), value))
    return samples, created


def _hint(status: int) -> str:
    if status in (401, 403):
        return " (it asks for a key)"
    return f" ({_SWITCHES})" if status in (404, 501) else ""


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:80]}"
