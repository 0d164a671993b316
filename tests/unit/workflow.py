"""ci/gpu.yml as GitHub would take it: which jobs an event starts, and their `run` steps one by one.

Steps run for real, in a scratch repository whose remote is a folder; what takes a GPU or minutes
(`pytest`, `verify-attn`, `pip`, `nvidia-smi`) is a stand-in that keeps its command line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / "ci" / "gpu.yml"
# A command of the repository's own environment, in its place.
STAND_IN = """#!/usr/bin/env bash
name=$(basename "$0")
printf '%s' "$name" >> "$CALLS"; printf '\\t%s' "$@" >> "$CALLS"; echo >> "$CALLS"
[[ ! -x $CALLS.d/$name ]] || exec "$CALLS.d/$name" "$@"
"""
VENV = """#!/usr/bin/env bash
[[ "$1 $2" == "-m venv" ]] || exec {python} "$@"
mkdir -p .venv/bin
for name in pip pytest verify-attn; do cp "$CALLS.d/stand-in" .venv/bin/$name; done
printf '#!/bin/sh\\nexec {python} "$@"\\n' > .venv/bin/python; chmod +x .venv/bin/python
"""


def workflow() -> dict[str, Any]:
    """The file; its key ``on`` is YAML 1.1's true."""
    loaded = yaml.safe_load(WORKFLOW.read_text())
    loaded["on"] = loaded.pop(True)
    return dict(loaded)


def evaluate(text: Any, known: dict[str, Any]) -> Any:
    """A ``${{ expression }}`` or a bare one: names, strings, == != && || ! and calls."""
    if not isinstance(text, str):
        return text
    inner = re.fullmatch(r"\s*\$\{\{(.*)\}\}\s*", text, re.DOTALL)
    code = inner[1] if inner else text

    def name(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[0]
        return {"true": "True", "false": "False"}.get(match[0], f"known[{match[0]!r}]")

    code = re.sub(r"'([^']*)'|[a-z_]+(?:\.[A-Za-z_-]+)*(?:\(\))?", name, code)
    code = code.replace("&&", " and ").replace("||", " or ")
    return eval(re.sub(r"!(?!=)", " not ", code).strip(), {"known": known})


def event(name: str, ref: str = "refs/heads/main", **more: Any) -> dict[str, Any]:
    """What expressions may ask for."""
    return {
        "github.event_name": name, "github.ref": ref, "inputs.accept": more.pop("accept", ""),
        "vars.VERIFY_ATTN_URL": "", "vars.VERIFY_ATTN_FLOORS": "", "vars.VERIFY_ATTN_CONTEXTS": "",
        "secrets.VERIFY_ATTN_API_KEY": "", "cancelled()": False, "always()": True, **more,
    }  # fmt: skip


def started(known: dict[str, Any], results: dict[str, str] | None = None) -> list[str]:
    """The jobs that run; ``results`` of those that do not succeed."""
    outcome: dict[str, str] = {}
    for job_name, job in workflow()["jobs"].items():
        needs = job.get("needs", [])
        needs = [needs] if isinstance(needs, str) else needs
        known = known | {f"needs.{need}.result": outcome[need] for need in needs}
        condition = str(job.get("if", "true"))
        sound = all(outcome[need] == "success" for need in needs) or "cancelled()" in condition
        runs = sound and evaluate(condition, known)
        outcome[job_name] = (results or {}).get(job_name, "success") if runs else "skipped"
    return [job for job, result in outcome.items() if result != "skipped"]


@dataclass
class Runner:
    """A checkout with a remote, and stand-ins on the path.  ``does``: shell of a stand-in."""

    folder: Path
    does: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.work, self.remote = self.folder / "work", self.folder / "remote"
        self.summary, self.calls = self.folder / "summary.md", self.folder / "calls"
        tools = self.folder / "calls.d"
        for made in (self.work, tools):
            made.mkdir()
        for copied in ("ci", "tests/e2e"):
            shutil.copytree(ROOT / copied, self.work / copied)
        for copied in ("README.md", "constraints.txt", "pyproject.toml"):
            shutil.copy(ROOT / copied, self.work)
        self._script(tools / "stand-in", STAND_IN)
        self._script(tools / "python3", VENV.format(python=sys.executable))
        self._script(tools / "nvidia-smi", STAND_IN)
        for name, body in self.does.items():
            self._script(tools / name, f"#!/usr/bin/env bash\n{body}\n")
        path = self.folder / "bin"
        path.mkdir()
        for name in ("python3", "nvidia-smi"):
            shutil.copy(tools / name, path)
        if "nvidia-smi" not in self.does:
            self._script(tools / "nvidia-smi", "#!/bin/sh\n")
        self.calls.touch()
        self.environment = {
            "PATH": f"{path}:{os.environ['PATH']}", "HOME": str(self.folder), "LC_ALL": "C",
            "CALLS": str(self.calls), "GITHUB_STEP_SUMMARY": str(self.summary),
            "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
        }  # fmt: skip
        self.git("init", "-q", "--bare", "-b", "main", str(self.remote), at=self.folder)
        self.git("init", "-q", "-b", "main")
        self.git("add", "ci", "README.md")
        who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        self.git(*who, "commit", "-q", "-m", "first")
        self.git("remote", "add", "origin", str(self.remote))
        self.git("push", "-q", "origin", "main")

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def git(self, *words: str, at: Path | None = None) -> str:
        """git's output; raises if it fails."""
        done = subprocess.run(
            ["git", *words], cwd=at or self.work, env=self.environment, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout

    def run(self, job: str, known: dict[str, Any]) -> tuple[bool, str]:
        """(did the job succeed, what its steps said): all ``run`` steps, in order."""
        workflow_now = workflow()
        said, failed = "", False
        for step in workflow_now["jobs"][job]["steps"]:
            if "run" not in step or (failed and "if" not in step):
                continue
            if not evaluate(step.get("if", "true"), known):
                continue
            env = workflow_now["env"] | step.get("env", {})
            env = {key: _shown(evaluate(value, known)) if "${{" in str(value) else str(value)
                   for key, value in env.items()}  # fmt: skip
            env |= self.environment | {"GPU_LOCK": str(self.folder / "lock")}
            script = self.folder / "step.sh"
            script.write_text(step["run"])
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)], cwd=self.work,
                env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            said += done.stdout
            failed = failed or done.returncode != 0
        return not failed, said

    def commands(self) -> list[list[str]]:
        """What was called, word by word."""
        return [line.split("\t") for line in self.calls.read_text().splitlines()]


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
