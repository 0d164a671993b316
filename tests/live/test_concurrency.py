"""Several streams at one point: rates, totals, counters, failures, and the client's own errors."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.live.real.process import Server
from tests.live.truth import Decode, Fault, Prefill, Scenario, Side, TruthServer
from tests.live.truth.log import RequestLog
from tests.live.truth.priority import realtime
from verify_attn.live.absent import Absent
from verify_attn.live.client import Answer
from verify_attn.live.measure import measure
from verify_attn.live.points import Point, Trial
from verify_attn.live.run import Run
from verify_attn.live.settings import Settings
from verify_attn.live.stream import Stream
from verify_attn.live.target import Target
from verify_attn.live.together import OVERLAP, SPAN, together

STEP_S = 0.02
BASE = Scenario(decode=Decode(step_s=STEP_S), prefill=Prefill(base_s=0.05))


def sweep(
    url: str, streams: int, tokens: int = 50, context: int = 256, **changes: Any
) -> tuple[Run, dict[str, Any]]:
    settings = Settings(
        contexts=(context,), concurrency=(streams,), max_tokens=tokens, endpoint="completions",
        keep_reads=True, **changes,
    )  # fmt: skip
    run = Run(Target.parse(url), settings)
    asyncio.run(run.go(lambda progress: None))
    (case,) = run.record(["test"])["cases"]
    return run, case


def pairs(run: Run, logs: list[RequestLog]) -> list[tuple[Answer, RequestLog]]:
    assert run.sweep is not None
    return [
        (answer, next(log for log in logs if log.body == answer.request))
        for _, answer in run.sweep.answers
    ]


@pytest.mark.parametrize("streams", [1, 4, 16, 64])
def test_every_stream_is_an_answer_of_its_own(streams: int) -> None:
    with TruthServer(BASE, spin=False) as server:
        run, case = sweep(server.url, streams)
        logs = server.generations()
    assert case["status"] == "pass", case["reason"]
    assert len(case["answers"]) == len(logs) == streams
    assert all(a["metrics"]["completion_tokens"] == 50 for a in case["answers"])
    assert len({log.body["prompt"] for log in logs}) == streams
    if streams == 1:
        assert "total_tok_s" not in case["metrics"]
        return
    metrics = case["metrics"]
    assert metrics["total_streams"] == streams
    assert metrics["stream_tok_s_lowest"] <= metrics["stream_tok_s_median"]
    assert metrics["stream_tok_s_median"] <= metrics["stream_tok_s_highest"]
    first = [answer["metrics"]["first_token_s"] for answer in case["answers"]]
    assert metrics["stream_first_token_s_highest"] == max(first)
    for answer, log in pairs(run, logs):
        assert answer.stream.usage is not None
        assert answer.stream.usage.completion_tokens == log.tokens_sent


@pytest.mark.timing
@pytest.mark.parametrize("streams", [4, 16, 64])
def test_total_and_gaps_against_the_servers_log(streams: int) -> None:
    """The client follows 64 streams: median of three, as others use this machine too."""
    scenario = replace(BASE, decode=Decode(step_s=0.005))
    errors, totals = [], []
    for _ in range(3):
        with TruthServer(scenario, spin=False, realtime=True) as server, realtime():
            run, case = sweep(server.url, streams, tokens=300)
            both = pairs(run, server.generations())
        gaps = []
        for answer, log in both:
            read = [r.t_ns for r in answer.stream.reads for c in r.chunks if c.text_chars]
            sent = [s.at_ns for s in log.token_sends]
            gaps.append(np.abs(np.diff(read) - np.diff(sent)) / 1e6)
        errors.append(float(np.median(np.concatenate(gaps))))
        first = min(log.token_sends[0].at_ns for _, log in both)
        last = max(log.token_sends[-1].at_ns for _, log in both)
        all_tokens = sum(log.tokens_sent for _, log in both)
        truth = (all_tokens - 1) / (last - first) * 1e9
        totals.append(case["metrics"]["total_tok_s"] / truth)
        assert case["metrics"]["total_over"] == OVERLAP
    assert statistics.median(errors) < 1.0, errors
    # The overlap has all streams in it all the time, the span has not.
    assert 0.97 < statistics.median(totals) < 1.25, totals


def test_acceptance_of_all_streams_comes_from_the_counters() -> None:
    decode = Decode(step_s=STEP_S, committed=3.0, drafts=4, pattern=(2, 4))
    with TruthServer(replace(BASE, engine="vllm", decode=decode), spin=False) as server:
        run, case = sweep(server.url, 4, tokens=64)
        logs = server.generations()
    steps = [step.committed for log in logs for step in log.steps[1:]]
    (point,) = run.points
    assert point.counted_together == pytest.approx(statistics.fmean(steps))
    assert case["metrics"]["committed_per_step"] == point.counted_together
    assert case["metrics"]["server"][0]["verify_steps"] == len(steps)
    assert "foreign-traffic" not in {f["cause"] for f in case["findings"]}
    rate = point.decode_tok_s
    assert not isinstance(rate, Absent)
    assert point.step_ms == pytest.approx(statistics.fmean(steps) / rate * 1e3)


def test_foreign_traffic_beside_four_streams() -> None:
    decode = Decode(step_s=STEP_S, committed=3.0, drafts=4, pattern=(2, 4))
    side = Side(foreign_tok_per_s=2000.0)
    with TruthServer(replace(BASE, engine="vllm", decode=decode, side=side), spin=False) as server:
        run, case = sweep(server.url, 4, tokens=64)
    assert "foreign-traffic" in {f["cause"] for f in case["findings"]}
    assert run.points[0].counted_together is None
    assert "others' requests" in case["absent"]["server"]


@pytest.mark.parametrize("fault", [Fault(on=(2,), reset_at=20), Fault(on=(2,), error_at=0)])
def test_one_failed_stream_of_four_is_an_error_and_the_others_stay(fault: Fault) -> None:
    with TruthServer(replace(BASE, engine="vllm", fault=fault), spin=False) as server:
        run, case = sweep(server.url, 4)
    assert case["status"] == "error"
    assert case["reason"].startswith("1 of 4 streams failed: ")
    assert len(run.points[0].usable) == 3
    assert case["metrics"]["total_streams"] == 3
    assert case["metrics"]["decode_tok_s"] > 0
    assert "foreign-traffic" not in {f["cause"] for f in case["findings"]}


def trial(first_s: float, gap_s: float, tokens: int, sent_s: float = 0.0) -> Trial:
    stream = Stream()
    for i in range(tokens):
        t_ns = round((sent_s + first_s + i * gap_s) * 1e9)
        finish = '"length"' if i == tokens - 1 else "null"
        text = f'{{"index":0,"text":"word","token_ids":[1],"finish_reason":{finish}}}'
        stream.feed(t_ns, f'data: {{"choices":[{text}]}}\n\n'.encode())
    stream.end()
    sent_ns = round(sent_s * 1e9)
    answer = Answer({}, "/v1/completions", sent_ns, sent_ns, 200, stream=stream)
    unknown = Absent("not asked")
    return Trial(measure(answer), tokens, unknown, unknown, 0, sent_ns)


def test_staggered_streams_total_is_that_of_the_overlap() -> None:
    found = together([trial(1.0, 0.1, 101), trial(1.0, 0.1, 101, sent_s=4.0)])
    assert not isinstance(found, Absent)
    assert (found.over, found.streams) == (OVERLAP, 2)
    assert found.seconds == pytest.approx(6.0)
    assert found.tok_per_s == pytest.approx(20.0)


def test_streams_one_after_another_have_the_rate_of_one() -> None:
    """The sum of the rates would say 20."""
    trials = [trial(1.0, 0.1, 100), trial(11.0, 0.1, 101)]
    found = together(trials)
    assert not isinstance(found, Absent)
    assert found.over == SPAN
    assert found.tok_per_s == pytest.approx(10.0)
    point = Point(256, 2, "ctx=256,streams=2", trials)
    assert point.total_tok_s() == found.tok_per_s


def test_streams_of_different_rates() -> None:
    found = together([trial(1.0, 0.1, 101), trial(1.0, 0.05, 161)])
    assert not isinstance(found, Absent)
    assert found.tok_per_s == pytest.approx(30.0)


def test_eight_streams_queue_for_four_slots(llamacpp: Server) -> None:
    run, case = sweep(llamacpp.url, 8, tokens=64, context=128)
    assert len(run.points[0].usable) == 8, case["reason"]
    metrics = case["metrics"]
    assert metrics["total_streams"] == 8
    # Half of them begin when the other half is through.
    lowest, highest = (metrics[f"stream_first_token_s_{end}"] for end in ("lowest", "highest"))
    decode_s = 63 / metrics["stream_tok_s_highest"]
    assert highest - lowest > 0.5 * decode_s
    assert metrics["total_over"] == SPAN
