"""Records to report on: real ones where there are any, and made-up ones for what they lack."""

import copy
import json
from pathlib import Path

from verify_attn.record import SCHEMA_VERSION
from verify_attn.report.folder import Folder, Step

RESULTS = Path(__file__).parents[2] / "results"
# What no reader may take for markup: HTML, plotly's own, the end of a script, and a direction mark.
HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    '<!--<script> <b>bold</b> <a href="javascript:window.hacked=1">link</a> '
    "\"'&lt;\u202e\x1b[31m\ud800"
)


def real(name):
    """A record of ``results/``."""
    return json.loads((RESULTS / name).read_text())


def record(command, cases, **more):
    """A record with an environment that says little."""
    return {
        "schema_version": SCHEMA_VERSION, "command": command,
        "started": "2026-11-30T18:00:00+00:00",
        "environment": {"gpus": [], "triton": "interpreter", "versions": {"python": "3.11"}},
        "cases": cases, **more,
    }  # fmt: skip


def case(name, status="pass", reason=None, parameters=None, metrics=None, **more):
    """A case with what `read_record` and `read_folder` ask of one."""
    return {"id": name, "status": status, "reason": reason, "parameters": parameters or {},
            "metrics": metrics or {}, **more}  # fmt: skip


def timed(kernel, context, nodes, ms, share, **more):
    """A cell of bench."""
    given = {
        "kernel": kernel, "context": context, "nodes": nodes, "requests": 1, "heads": 8,
        "page_size": 1, "layout": "shuffled", "tree": "tree", "dtype": "bfloat16",
        "geometry": "kimi-k2.6-tp8", "kv_dtype": "", **more,
    }  # fmt: skip
    figures = {
        "run_ms": ms, "run_low_ms": 0.99 * ms, "run_high_ms": 1.02 * ms, "graph_ms": 0.97 * ms,
        "limit_ms": ms * share, "limit_share": share, "binds": "memory", "gb_per_s": 4300 * share,
        "tflop_per_s": 400 * share, "memory_share": share, "arithmetic_share": share / 2,
        "samples": 40,
    }  # fmt: skip
    layout = given["layout"]
    return case(f"{kernel} | c{context} n{nodes} {layout}", parameters=given, metrics=figures)


def bench():
    """Two kernels along two axes and one layout, and one that is only projected."""
    cases = []
    for kernel, least, share in (("triton-unsplit", 0.3, 0.01), ("triton-split", 0.02, 0.45)):
        for context in (1427, 11402, 31952, 65536, 131072, 184728):
            grown = context / 31952
            cases.append(timed(kernel, context, 32, least * max(1, 4 * grown), share * grown**0.2))
        for nodes in (8, 64, 256):
            cases.append(
                timed(kernel, 31952, nodes, least * nodes / 8, share * (nodes / 32) ** 0.1)
            )
        cases.append(timed(kernel, 31952, 32, least * 3.9, share, layout="contiguous"))
    cases += [timed("triton-split", c, 32, 0.1 * c / 31952, 0.3, projected=True)
              for c in (31952, 184728)]  # fmt: skip
    cases.append(case("refused | c1427", "skipped", "page_size 1 is not declared",
                      {"kernel": "refused", "context": 1427}))  # fmt: skip
    return record("verify-attn bench --json bench.json", cases)


def failing_check():
    """The failures of a kernel that sees siblings, as `check` writes them."""
    tree = [-1, 0, 0, 1, 1, 2, 2, 3]
    given = {"requests": [[0, "chain:3"], [17, tree]], "page_size": 16, "seed": 5}
    text = (
        "oracle: out differs from the oracle's\noff:    256 of 384 elements of out (66.7%)\n"
        "first:  request 1, node 4, head 0, dim 0: 0.26, expected 0.19 within 1.2e-06\n"
        "likely: sibling leak: sees its siblings too"
    )
    name = "examples.sibling_leak:verify"
    cases = [
        case(f"{name}/oracle", "fail", text, {"kernel": name, "check": "oracle"}, {"executed": 2},
             failures=[{"text": text, "case": given}]),
        case(f"{name}/lse", "skipped", "does not declare lse", {"kernel": name, "check": "lse"},
             {"executed": 0}),
        case("torch/oracle", parameters={"kernel": "torch", "check": "oracle"},
             metrics={"executed": 24}),
        case("torch/lse", parameters={"kernel": "torch", "check": "lse"}, metrics={"executed": 24}),
    ]  # fmt: skip
    return record("verify-attn check --json check.json", cases)


def collapse():
    """The sweep of the slow kernel alone, held to a floor."""
    sweep = real("h200/collapse.json")
    own = "triton-unsplit"
    sweep["cases"] = [c for c in sweep["cases"] if c["id"].startswith(f"{own},")]
    for c in sweep["cases"]:
        rate = c["metrics"]["decode_tok_s"]
        held = "pass" if rate > 40 else "fail"
        c["floors"] = [{"name": "chat", "rate": "sustained", "unit": "tok/s", "reason": "held",
                        "status": held, "floor_tok_s": 40.0}]  # fmt: skip
        c["status"] = c["floors"][0]["status"]
        c["reason"] = f"chat: {rate:.1f} tok/s, the floor is 40"
        c["id"] = c["id"].removeprefix(f"{own},")
    sweep |= sweep.pop("sweeps")[own]
    return sweep | {"command": "verify-attn sweep --json sweep.json", "floors_given": 1}


def hostile():
    """Each step with markup in every text that others write."""
    sweep, check, times = real("cpu/burst_prose.json"), failing_check(), bench()
    first, second = sweep["cases"]
    second |= {"id": f"ctx=3k{HOSTILE}", "status": "error", "reason": f"500: {HOSTILE}",
               "notes": [HOSTILE]}  # fmt: skip
    second["findings"][0]["evidence"] += f" at token 700 {HOSTILE}"
    second["answers"][0] |= {"outcome": "failed", "reason": HOSTILE}
    first["floors"] = [{"name": HOSTILE, "status": "fail", "floor_tok_s": 300.0, "reason": HOSTILE}]
    sweep["findings"][0]["evidence"] = HOSTILE
    sweep["server"] |= {"model": HOSTILE, "notes": [HOSTILE]}
    sweep["environment"]["gpus"] = [{"index": 0, "name": HOSTILE}]
    for c in check["cases"][:2]:
        c["parameters"]["kernel"] = f"{HOSTILE}:verify"
        c["reason"] = HOSTILE
    check["cases"][0]["failures"][0]["text"] += HOSTILE
    for c in times["cases"]:
        if c["parameters"]["kernel"] == "triton-split":
            c["parameters"]["kernel"] = HOSTILE
    return {"sweep": sweep, "check": check, "bench": times}


def folder(path, problems=None, run=None, **records):
    """A folder with these steps' records, as `read_folder` makes it."""
    why = problems or {}
    steps = {
        name: Step(name, copy.deepcopy(records.get(name)),
                   None if name in records else why.get(name, f"{name}.json is missing"))
        for name in ("doctor", "check", "bench", "sweep")
    }  # fmt: skip
    return Folder(path, run, steps)


def run_record():
    """What `run` says of its steps."""
    return record("verify-attn run", [
        case("doctor", metrics={"seconds": 1.2}, exit_code=0, notes=[]),
        case("check", "fail", "1 check failed", {"command": "verify-attn check --json check.json"},
             {"seconds": 61.0}, exit_code=1, notes=[]),
        case("bench", "skipped", "no GPU", exit_code=None, notes=[]),
        case("sweep", "fail", None, {"command": "verify-attn sweep --json sweep.json"},
             {"seconds": 100.5}, exit_code=1, notes=[]),
    ], finished=True, interrupted=False)  # fmt: skip
