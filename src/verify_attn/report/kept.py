"""Run records kept in a folder or on a git branch, read for their figures over time."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verify_attn.record import RecordError, parse_record

MAX_BYTES = 64 << 20  # a record of 150 cells with all samples is under 1 MB
KINDS = ("bench", "sweep", "check", "compare")
_GIT_LIMIT_S = 60.0


class HistoryError(ValueError):
    """Nothing to make a history of; the message says what was given and what is asked for."""


@dataclass(frozen=True)
class Kept:
    """One record, without its samples.

    ``kind``     the command that made it, one of `KINDS`
    ``name``     its file's, within the folder or branch
    ``machine``  what must be equal for figures to be compared: GPUs, model, ...
    ``cases``    by id, as in the record, but for samples and answers
    """

    kind: str
    name: str
    started: datetime
    commit: str | None
    machine: str
    versions: Mapping[str, str]
    cases: Mapping[str, Mapping[str, Any]]


@dataclass
class Records:
    """Records in the order of time, and of each file that gave none why: reason -> names."""

    kept: list[Kept] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def skip(self, name: str, why: str) -> None:
        """Leave a file out; only the reason's general part, up to a colon, tells reasons apart."""
        self.skipped.setdefault(why, []).append(name)

    def note(self, text: str) -> None:
        """Say this of the records, once."""
        if text not in self.notes:
            self.notes.append(text)


def read_folder(folder: Path) -> Records:
    """Every ``*.json`` below the folder, at any depth.  Raises `HistoryError` where there is no
    folder or no usable record in it.  Links to folders are not followed."""
    if not folder.is_dir():
        raise HistoryError(f"{folder} is no folder; give one that holds run records, at any depth")
    found = Records()
    return _ordered(_files(folder, found), found, str(folder))


def read_branch(repository: Path, branch: str) -> Records:
    """As `read_folder`, of a branch or commit of the repository, which need not be checked out."""
    if not repository.is_dir():
        raise HistoryError(f"{repository} is no folder; give one of the branch's repository")
    found = Records()
    where = f"the branch {branch} of {repository}"
    return _ordered(_blobs(repository, branch, found), found, where)


def _ordered(files: Iterator[tuple[str, bytes]], found: Records, where: str) -> Records:
    seen: dict[bytes, str] = {}
    for name, content in files:
        first = seen.setdefault(hashlib.sha256(content).digest(), name)
        if first != name:
            found.skip(name, "the same record as in another file")
            continue
        try:
            found.kept.append(_kept(parse_record(content, name), name))
        except RecordError as wrong:
            found.skip(name, str(wrong).removeprefix(name).lstrip(": "))
    if not found.kept:
        reasons = "; ".join(f"{names[0]}: {why}" for why, names in found.skipped.items())
        raise HistoryError(
            f"{where} holds no record of {', '.join(KINDS)}"
            + (f" ({reasons[:2000]})" if reasons else ", no *.json at all")
        )
    found.kept.sort(key=lambda kept: (kept.started, kept.name))
    times = [kept.started for kept in found.kept]
    if alike := len(times) - len(set(times)):
        found.notes.append(
            f"{alike} records started in the same second as another: their names order them"
        )
    return found


def _files(folder: Path, found: Records) -> Iterator[tuple[str, bytes]]:
    def refused(wrong: OSError) -> None:
        found.skip(str(wrong.filename), f"cannot be read: {wrong.strerror}")

    for at, folders, names in os.walk(folder, onerror=refused):  # follows no link to a folder
        for link in [name for name in folders if os.path.islink(os.path.join(at, name))]:
            found.skip(os.path.relpath(os.path.join(at, link), folder), "is a link to a folder")
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # .git, .venv
        for name in sorted(names):
            path = os.path.join(at, name)
            if not name.endswith(".json"):
                continue
            shown = os.path.relpath(path, folder)
            try:
                about = os.stat(path)
                if not stat.S_ISREG(about.st_mode):  # a pipe would be waited for
                    found.skip(shown, "is no regular file")
                elif about.st_size > MAX_BYTES:
                    found.skip(shown, f"has over {MAX_BYTES:,} bytes")
                else:
                    yield shown, Path(path).read_bytes()
            except OSError as wrong:
                found.skip(shown, f"cannot be read: {wrong.strerror}")


def _blobs(repository: Path, branch: str, found: Records) -> Iterator[tuple[str, bytes]]:
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{branch}^{{commit}}")
    try:
        commit = _git(repository, *asked).decode().strip()
    except HistoryError as wrong:
        raise HistoryError(f"{repository} has no branch or commit {branch}: {wrong}") from None
    names = []
    listed = _git(repository, "ls-tree", "-r", "-z", "-l", "--full-tree", commit)
    for entry in filter(None, listed.split(b"\0")):
        about, _, raw = entry.partition(b"\t")
        mode, _, sha, size = about.split()
        name = os.fsdecode(raw)
        if not name.endswith(".json"):
            continue
        if not mode.startswith(b"100"):
            found.skip(name, "is no regular file")
        elif int(size) > MAX_BYTES:
            found.skip(name, f"has over {MAX_BYTES:,} bytes")
        else:
            names.append((name, sha))
    wanted = b"".join(sha + b"\n" for _, sha in names)
    rest = memoryview(_git(repository, "cat-file", "--batch", given=wanted))
    for name, _ in names:
        head, _, _ = bytes(rest[:200]).partition(b"\n")
        start, words = len(head) + 1, head.split()
        if len(words) != 3:  # "... missing": a clone need not have everything
            found.skip(name, "is not in this clone")
            rest = rest[start:]
            continue
        end = start + int(words[2])
        yield name, bytes(rest[start:end])
        rest = rest[end + 1 :]


def _git(repository: Path, *words: str, given: bytes = b"") -> bytes:
    command = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(repository))
    try:
        asked = subprocess.run(
            [*command, *words], input=given, capture_output=True, timeout=_GIT_LIMIT_S, check=False
        )
    except (OSError, ValueError, subprocess.SubprocessError) as wrong:
        raise HistoryError(f"git {words[0]} did not run: {wrong}") from None
    if asked.returncode != 0:
        said = asked.stderr.decode(errors="replace").strip() or "there is no such thing"
        raise HistoryError(f"git {words[0]}: {said}")
    return asked.stdout


# -- one record ----------------------------------------------------------------------------------


def _kept(record: Mapping[str, Any], name: str) -> Kept:
    """Raises `RecordError`, which begins with ``name``, for a record that has no place in time."""
    kind = _kind(record)
    if kind is None:
        command = str(record.get("command"))[:60]
        raise RecordError(f"{name}: is of {command!r}: only {', '.join(KINDS)} have a history")
    try:
        started = datetime.fromisoformat(str(record.get("started")))
        started = started if started.tzinfo else started.replace(tzinfo=UTC)
        started = started.astimezone(UTC)
    except (ValueError, OverflowError):
        raise RecordError(f"{name}: says no time in 'started'") from None
    commit, environment = record.get("commit"), _object(record.get("environment"))
    cases: dict[str, Mapping[str, Any]] = {}
    for case in record["cases"]:
        if isinstance(case.get("id"), str):
            few = ("status", "reason", "metrics", "methods")
            cases.setdefault(case["id"], {key: case.get(key) for key in few})
    return Kept(
        kind, name, started, commit if isinstance(commit, str) and commit else None,
        _machine(kind, record, environment),
        {str(k): str(v) for k, v in _object(environment.get("versions")).items()}, cases,
    )  # fmt: skip


def _kind(record: Mapping[str, Any]) -> str | None:
    """By its command; by what it holds where another program asked the same of the same parts."""
    try:
        words = shlex.split(str(record.get("command", "")))
    except ValueError:
        words = []
    if words[1:2] and words[1] in KINDS and os.path.basename(words[0]) == "verify-attn":
        return words[1]
    if "bench" in _object(record.get("environment")):
        return "bench"
    if "compared" in record:
        return "compare"
    if "server" in record and "floors_given" in record:
        return "sweep"
    return "check" if "progress" in record and "stopped_early" in record else None


def _machine(kind: str, record: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """The GPUs as the compare gate tells them apart, and what else was asked of the subject."""
    if kind == "compare":
        identity = _object(_object(_object(record.get("compared")).get("new")).get("identity"))
    else:
        identity = _object(_object(environment.get("bench")).get("identity"))
    listed = environment.get("gpus")
    gpus = [_object(gpu) for gpu in listed] if isinstance(listed, list) else []
    words = _gpus([identity] if identity else gpus)
    if not words:
        words = [f"no GPU, {environment.get('platform')}, {environment.get('cpu_count')} CPUs"]
    if kind == "check":
        asked = _object(record.get("parameters")).get("examples")
        words += [str(environment.get("device")), f"{asked} examples a kernel"]
    if kind == "sweep":
        server = _object(record.get("server"))
        words += [f"server {_host(server.get('url'))}", f"model {server.get('model')}"]
        corpora = {str(_object(c.get("parameters")).get("corpus")) for c in record["cases"]}
        words += [f"text {', '.join(sorted(corpora))}"]
    return ", ".join(words)


def _gpus(gpus: list[dict[str, Any]]) -> list[str]:
    said = sorted(
        f"{gpu.get('name')}, sm {gpu.get('compute_capability')}, {gpu.get('memory_bytes')} bytes, "
        f"driver {gpu.get('driver')}, {gpu.get('power_limit_w')} W"
        for gpu in gpus
    )
    return [f"{said.count(one)} x {one}" for one in dict.fromkeys(said)]


def _host(url: Any) -> str:
    """Without the port, which is another one at each start of an embedded server."""
    try:
        return urlsplit(str(url)).hostname or "unknown"
    except ValueError:
        return "unknown"


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
