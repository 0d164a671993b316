"""What a check keeps of its workers' failures, in whatever order they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from verify_attn.conformance.pool import Pool, Task
from verify_attn.conformance.session import Session, UnusableKernel
from verify_attn.record import read_record


class Scripted:
    """A pool whose workers are done with the chunks in this order, each with a failure."""

    def __init__(self, order: list[int]) -> None:
        self.order = order

    def run(
        self, tasks: list[Task], enabled: Callable[[Task], list[str]]
    ) -> Iterator[tuple[Task, dict[str, Any]]]:
        by_chunk = {task.chunk: task for task in tasks}
        for chunk in self.order:
            case = json.dumps({"requests": [[1, "chain:" + "1" * (9 - chunk)]]})
            yield by_chunk[chunk], {
                "event": "failure", "check": "oracle", "text": f"found in chunk {chunk}",
                "case": case, "final": True,
            }  # fmt: skip
            yield by_chunk[chunk], {"event": "done"}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_the_failure_that_is_shown_is_the_first_chunks_whoever_was_quickest(
    order: list[int],
) -> None:
    session = Session(["torch"], ["oracle"], examples=30)
    for _ in session.run(cast(Pool, Scripted(order))):
        pass
    case = session.cases[0]
    assert case["reason"] == "found in chunk 0"
    assert [failure["chunk"] for failure in case["failures"]] == [0, 1, 2]


# -- interrupted, and gone on with ---------------------------------------------------------------

CASE = json.dumps({"requests": [[1, "chain:2"]]})
WRONG = {"event": "failure", "check": "oracle", "text": "wrong", "case": CASE, "final": True}
PASS = {"event": "check", "check": "oracle", "status": "pass", "worst": 0.5}
EXAMPLE, DONE = {"event": "example", "tokens": 9}, {"event": "done"}


class Told:
    """A pool that says these events of the first task, and is then interrupted or done."""

    def __init__(self, events: list[dict[str, Any]], interrupted: bool = False) -> None:
        self.events, self.interrupted = events, interrupted
        self.tasks: list[Task] = []

    def run(
        self, tasks: list[Task], enabled: Callable[[Task], list[str]]
    ) -> Iterator[tuple[Task, dict[str, Any]]]:
        self.tasks = tasks
        for event in self.events:
            yield tasks[0], event
        if self.interrupted:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


def told(path: Path, events: list[dict[str, Any]], *, interrupted: bool = False, **more: Any) -> (
    tuple[Session, Told]
):  # fmt: skip
    session = Session(["torch"], ["oracle"], examples=10, record=path, **more)
    pool = Told(events, interrupted)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            list(session.run(cast(Pool, pool)))
    else:
        list(session.run(cast(Pool, pool)))
    return session, pool


@pytest.mark.parametrize("more", [{}, {"case": CASE}])
def test_a_failure_that_is_still_being_shrunk_is_kept(tmp_path: Path, more: dict[str, Any]) -> None:
    """A kernel that fails now and then would pass the next time."""
    path = tmp_path / "r.json"
    first, _ = told(path, [{**WRONG, "final": False}], interrupted=True, **more)
    assert first.started
    assert read_record(path)["cases"][0]["status"] == "fail"
    if not more:
        again, _ = told(path, [PASS, EXAMPLE, DONE], resume=True)
        assert again.cases[0]["status"] == "fail"


def test_a_cut_off_chunk_is_drawn_again_and_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    told(path, [PASS, EXAMPLE, PASS], interrupted=True)
    assert read_record(path)["cases"][0]["metrics"]["executed"] == 2
    again, pool = told(path, [PASS, EXAMPLE, DONE], resume=True)
    assert [(task.chunk, task.examples) for task in pool.tasks] == [(0, 10)]
    assert again.cases[0]["metrics"]["executed"] == 1
    whole = read_record(path)
    _, idle = told(path, [], resume=True)
    assert idle.tasks == []
    assert read_record(path)["cases"] == whole["cases"]


def test_a_chunk_that_ended_in_a_crash_is_done(tmp_path: Path) -> None:
    """Where no check is left to run, nobody says that it is."""
    path = tmp_path / "r.json"
    told(path, [PASS, EXAMPLE, PASS, WRONG])
    before = read_record(path)
    told(path, [], resume=True)
    assert read_record(path)["cases"] == before["cases"]


def test_another_commit_is_refused_and_the_device_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    told(path, [{"event": "device", "device": "cuda"}, PASS, EXAMPLE, DONE])
    again, _ = told(path, [], resume=True)
    assert again.device == read_record(path)["environment"]["device"] == "cuda"
    monkeypatch.setattr("verify_attn.record.current_commit", lambda: "b" * 40)
    path.write_text(json.dumps(read_record(path) | {"commit": "a" * 40}))
    with pytest.raises(UnusableKernel, match=r"was made at commit a+, here is b+"):
        Session(["torch"], ["oracle"], examples=10, record=path, resume=True)


NEGATIVE = {"executed": -20, "skipped": {}, "worst": 0}
DAMAGE: list[Callable[[dict[str, Any]], Any]] = [
    lambda r: r["cases"][0].pop("failures"),
    lambda r: r["cases"][0].update(failures={}),
    lambda r: r["cases"][0].update(failures=[5]),
    lambda r: r["cases"][0].update(failures=[{"chunk": 0}]),
    lambda r: r["cases"][0].update(status="pass"),
    lambda r: r.update(cases=[]),
    lambda r: r["progress"]["torch"].update(chunks=5),
    lambda r: r["progress"]["torch"].update(chunks=None),
    lambda r: r["progress"]["torch"].pop("whole"),
    lambda r: r["progress"]["torch"]["whole"].update(tallies={"oracle": NEGATIVE}),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_not_gone_on_with(
    tmp_path: Path, damage: Callable[[dict[str, Any]], Any]
) -> None:
    path = tmp_path / "r.json"
    told(path, [PASS, EXAMPLE, WRONG, DONE])
    record = read_record(path)
    damage(record)
    path.write_text(json.dumps(record))
    with pytest.raises(UnusableKernel, match="is damaged, or of an earlier version"):
        Session(["torch"], ["oracle"], examples=10, record=path, resume=True)
