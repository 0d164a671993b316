"""The page: sections in order, figures as JSON, both scripts inside, nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from verify_attn import __version__
from verify_attn.report.folder import Folder
from verify_attn.report.html.accepted import committed
from verify_attn.report.html.drawn_tree import tree_section
from verify_attn.report.html.figure import DARK, Section
from verify_attn.report.html.fragmentation import fragmentation
from verify_attn.report.html.growth import prefill, step_time
from verify_attn.report.html.kernels import kernels
from verify_attn.report.html.matrix import MARKS, correctness
from verify_attn.report.html.rates import decode
from verify_attn.report.html.surroundings import causes, environment, steps
from verify_attn.report.html.values import LONG, Record, cases, mapping, objects, plain
from verify_attn.report.html.windows import within
from verify_attn.report.untested import no_gpu
from verify_attn.report.verdict import Reason, Verdict

FIRST, REASONS = 4, 60  # reasons on the first screen, and behind it
NO_TIMES = (
    "nothing was timed, because this machine has no GPU; on one that has, verify-attn bench --json "
    "bench.json times the kernels, and verify-attn report with this folder and that file shows them"
)
# Where a reason's step is told.
WHERE = {"check": "correctness", "bench": "kernels", "sweep": "decode", "doctor": "environment"}
WORDS = {
    "pass": "Pass", "fail": "Fail", "inconclusive": "Inconclusive", "dead": "Server dead",
    "interrupted": "Interrupted", "error": "Error", "skipped": "Skipped",
}  # fmt: skip
SIGNS = MARKS | {"dead": "✗", "interrupted": "!"}


def page(
    folder: Folder,
    verdict: Verdict,
    against: Record | None = None,
    others: Sequence[Record] = (),
) -> str:
    """The whole file.  ``others``: further records whose cases some section may know."""
    found = sections(folder, against, others)
    figures = {c.id: c.figure for s in found for c in s.charts}
    library, script = plotly_js(), _part("templates", "page.js")
    env = jinja2.Environment(
        loader=jinja2.PackageLoader(__name__, "templates"), autoescape=True,
        undefined=jinja2.StrictUndefined, finalize=_final, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return env.get_template("report.html.j2").render(
        verdict=verdict, headline=_headline(verdict), sections=found, words=WORDS, signs=SIGNS,
        version=__version__,
        title=f"{WORDS.get(verdict.status, verdict.status)}: {folder.path.name}",
        name=plain(folder.path.name, 200), facts=_facts(folder),
        reasons=[_reason(r, found, verdict.headline) for r in verdict.reasons[:REASONS]],
        first=FIRST,
        left=max(0, len(verdict.reasons) - REASONS),
        style=Markup(_part("templates", "style.css")),
        figures=Markup(_json({"figures": figures, "dark": DARK})),
        library=Markup(library), script=Markup(script),
        policy=_policy(library, script),
    )  # fmt: skip


def sections(folder: Folder, against: Record | None, others: Sequence[Record]) -> list[Section]:
    """Everything below the first screen."""
    records = {name: step.record for name, step in folder.steps.items()}
    why = {name: _why_none(folder, name) for name in folder.steps}
    sweep, bench, check = (records.get(name) for name in ("sweep", "bench", "check"))
    no_sweep, no_bench, no_check = (why.get(name, "") for name in ("sweep", "bench", "check"))
    # A benchmark's own record of kernel times will do where there is none of bench.
    timed = bench or next((o for o in others if _kernel_times(o)), None)
    every = [c for r in [*records.values(), *others] for c in cases(r)]
    return [
        causes(sweep, no_sweep),
        decode(sweep, no_sweep, against),
        within(sweep, no_sweep),
        committed(sweep, no_sweep),
        step_time(sweep, no_sweep),
        prefill(sweep, no_sweep),
        kernels(timed, no_bench),
        correctness(check, no_check),
        tree_section(check),
        fragmentation(every),
        steps(folder),
        environment(folder),
    ]


def _why_none(folder: Folder, name: str) -> str:
    """Why a step has no record; a part that could not run is no file that went missing."""
    step = folder.steps[name]
    if step.record is not None or not step.problem:
        return ""
    if name == "bench" and not folder.alone and no_gpu(folder):
        return NO_TIMES
    case = next((c for c in cases(folder.run) if c.get("id") == name), {})
    skipped = case.get("reason") if case.get("status") == "skipped" else None
    return f"{name}: {plain(skipped, LONG) or step.problem}"


def _kernel_times(record: Record) -> bool:
    return any("median_ms" in mapping(c.get("metrics")) for c in cases(record))


def _headline(verdict: Verdict) -> str:
    """Without the status before it, which the badge says."""
    before, colon, after = verdict.headline.partition(": ")
    return after if colon and before == verdict.status.upper() else verdict.headline


def _reason(reason: Reason, found: Sequence[Section], headline: str) -> dict[str, Any]:
    where = WHERE.get(reason.step, "steps")
    for section in found:
        for failure in section.more.get("failures", ()):
            if reason.case == f"{failure['kernel']}/{failure['check']}":
                where = failure["id"]
    told = " ".join(reason.text.split()) in headline  # once is enough
    return {"step": reason.step, "status": reason.status, "case": reason.case, "where": where,
            "text": "" if told else plain(reason.text, LONG)}  # fmt: skip


def _facts(folder: Folder) -> list[tuple[str, str]]:
    """What a reader asks first: of what, on what, when."""
    records = [r for r in (folder.run, *(s.record for s in folder.steps.values())) if r]
    found: dict[str, str] = {}
    for record in records:
        own = mapping(record.get("environment"))
        names = [plain(g.get("name"), 60) for g in objects(own.get("gpus"))]
        if "gpus" in own:
            found["GPU"] = found.get("GPU") or ", ".join(
                f"{names.count(n)} x {n}" for n in dict.fromkeys(names))  # fmt: skip
        server = mapping(record.get("server"))
        model = plain(server.get("model"), 80)
        engine = plain(mapping(server.get("facts")).get("engine"), 60)
        if model or engine:
            found["Server"] = ", ".join(filter(None, (engine, model)))
        if record.get("started"):
            found.setdefault("Started", plain(record.get("started"), 40))
        if record.get("commit"):
            name, dash, changed = plain(record.get("commit"), 80).partition("-")
            found.setdefault("Commit", f"{name[:12]}{dash}{changed}")
    if found.get("GPU") == "":
        found["GPU"] = "none"
    return list(found.items())


def _final(value: Any) -> Any:
    """Of every value that the templates print: text as it may be shown, nothing for None."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) or not isinstance(value, str) else plain(value, LONG)


def _json(value: Any) -> str:
    """JSON that no text inside can end the script element with, nor open a comment in it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def plotly_js() -> str:
    """plotly.js with scatter and bar charts, to stand inside a script element."""
    return _part("plotly", "plotly-basic.min.js")


def _part(*names: str) -> str:
    return resources.files(__package__).joinpath(*names).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """No network, no script but these two."""
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() + "'"
        for s in scripts
    ]  # fmt: skip
    return (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
