"""A folder in which the pages' commands find what they name, and a server that answers at once."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from benchmarks.history_load import record as dated

from tests.docs.pages import ROOT, blocks
from tests.live.truth import Decode, Prefill, Scenario, Tokenizer
from tests.perf.saved_runs import case, record

# examples/collapsing_server.py in a fifteenth of its time: the slope stays under a tenth of what
# the card's memory allows.
FASTER = 15
COLLAPSING = Scenario(
    engine="sglang",
    model="kimi-k2.6-stand-in",
    tokenizer=Tokenizer(inflation=1.39, context_limit=200_000),
    prefill=Prefill(per_token_s=2e-6),
    decode=Decode(
        step_s=0.032 / FASTER, per_context_token_s=7.6e-6 / FASTER, jitter=0.03, drafts=7,
        pattern=(3, 7, 5, 4, 6),
    ),
)  # fmt: skip
VERIFY = """
from verify_attn.kernels.torch_kernel import torch_verify as verify
"""
COMPLAINT = {
    "model": "kimi-k2.6-stand-in", "max_tokens": 200,
    "messages": [{"role": "user", "content": "Why is it so slow?"}],
}  # fmt: skip


def playground(folder: Path, page: str) -> Path:
    """Fill ``folder`` for the commands of a page; its own floors and kernels are the page's."""
    for name in ("examples", "results", "ci"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "my_kernels.py").write_text(VERIFY + "\n".join(
        "\n".join(lines) for _, lines in blocks("docs/wrap-a-kernel.md", "python")
    ))  # fmt: skip
    floors = [lines for _, lines in blocks(page, "toml") if lines[0] == "schema_version = 1"]
    if floors:
        (folder / "floors.toml").write_text("\n".join(floors[0]))
    (folder / "complaint.json").write_text(json.dumps(COMPLAINT))
    for name in ("a", "b", "main", "branch"):
        text = json.dumps(record(case(1427), case(31952), case(184728)))
        (folder / f"{name}.json").write_text(text)
    for name in ("sweep.json", "FOLDER/sweep.json", "old/sweep.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "results/cpu/burst_prose.json", folder / name)
    shutil.copy(ROOT / "results/h200/check.json", folder / "check.json")
    kept = folder / "records"
    kept.mkdir()
    for number in range(8):
        found = dated("bench", number, [case(ms=0.1 + number * 1e-4)])
        found["environment"] |= record()["environment"]
        (kept / f"{number}.json").write_text(json.dumps(found))
    for words in (
        ["init", "-q", "-b", "records"],
        ["add", "records"],
        ["-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-q", "-m", "records"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder
