"""The product's own sweep against llama.cpp's server and ``transformers serve``.

What each must find is known from the server's own counts and from its planted model.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from string import ascii_letters

import pytest

# In the modules that pytester keeps: numpy cannot be imported a second time in one process.
import verify_attn.live.server_test  # noqa: F401
from tests.live.real.bpe import Vocabulary
from tests.live.real.process import Server, ask, off_the_servers_core
from tests.live.real.sweeping import (
    PROSE,
    TRIES,
    answers,
    causes,
    command,
    ready,
    recorded,
    swept,
)
from tests.live.said import Say
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import Acceptance, ServerTimings, server_timings
from verify_attn.live.client import Answer
from verify_attn.live.points import Trial
from verify_attn.live.run import Run

BEYOND = 18_000  # tokens; every model here has a context of 16,384
FLOORS = """schema_version = 1
[[floor]]
name = "mine"
unit = "of shortest context"
points = [[250, {least}], [1100, {least}]]
"""


def own_rate(answer: Answer) -> float:
    """llama.cpp's ``timings``: first token to last by its clock, all tokens but the first.

    That is its ``predicted_per_second`` too, which looks like ``predicted_n / predicted_ms`` and
    is one token less.
    """
    timings = server_timings(answer.stream.events)
    assert isinstance(timings, ServerTimings)
    assert timings.decode_ms is not None
    assert timings.decoded_tokens is not None
    return (timings.decoded_tokens - 1) / timings.decode_ms * 1e3


class TestLlamaCpp:
    def test_a_healthy_sweep(self, llamacpp: Server, say: Say) -> None:
        named: list[set[str]] = []
        for attempt in range(TRIES):  # a busy machine slows a step, and then that is what is said
            run = swept(llamacpp, contexts=(300, 600), max_tokens=300, seed=attempt)
            server = run.record([])["server"]
            assert server["facts"]["engine"] == "llama.cpp"
            # A slot's context: the server was started with twice as much for its two slots.
            assert server["facts"]["context_limit"]["value"] == 16384
            assert server["granted"]["usage"]
            assert server["extras_refused"] == {}
            assert server["calibration"]["sized_by"] == "the server's /tokenize"
            for point in run.points:
                assert point.context == pytest.approx(point.asked_context, rel=0.02)
                assert run.verdict(point).status in ("pass", "inconclusive")
            for trial, answer in answers(run):
                assert answer.request["cache_prompt"] is False
                assert trial.cached_tokens == 0
                assert trial.measurement.completion_tokens == 300
                assert trial.committed_per_step == 1
                assert trial.measurement.timeline.exact
            named.append(causes(run))
            if not named[-1]:
                break
            say(f"a healthy server is swept anew: {named[-1]}")
        assert set() in named, named

    def test_the_rate_is_the_servers_own(self, llamacpp: Server) -> None:
        run = swept(llamacpp, contexts=(300,), max_tokens=400, repeats=5)
        ratios = [float(t.measurement.decode_tok_s) / own_rate(a) for t, a in answers(run)]
        assert statistics.median(ratios) == pytest.approx(1, abs=0.03), ratios
        per_second = answers(run)[0][1].stream.events[-1]["timings"]["predicted_per_second"]
        assert per_second == pytest.approx(own_rate(answers(run)[0][1]), rel=1e-4)

    def test_the_command_its_floors_and_its_reads(self, llamacpp: Server, tmp_path: Path) -> None:
        points = ("--contexts", "256,1k", "--max-tokens", "200", "--repeats", "2")
        floors = tmp_path / "floors.toml"
        floors.write_text(FLOORS.format(least=0.2))
        passed = command(llamacpp, tmp_path, *points, "--floors", str(floors), "--reads")
        assert (passed.exit_code, passed.statuses) == (0, ["pass", "pass"]), passed.stdout
        assert len(passed.record["reads"]) == 4
        for kept in passed.record["reads"]:
            assert kept["columns"] == ["ms", "bytes", "events", "characters"]
            times = [row[0] for row in kept["reads"]]
            assert times == sorted(times)
            # A token an event, the role, the usage, [DONE].
            assert 200 <= sum(row[2] for row in kept["reads"]) <= 204
        floors.write_text(FLOORS.format(least=1.5))
        # Steps of 0.3 ms are never calm: it takes thousands of them to be sure of a miss by a half.
        many = ("--contexts", "256,1k", "--max-tokens", "800", "--repeats", "6")
        failed = command(llamacpp, tmp_path, *many, "--floors", str(floors))
        assert (failed.exit_code, failed.statuses[1]) == (1, "fail"), failed.stdout
        assert "of shortest context" in failed.record["cases"][1]["reason"]

    def test_a_context_beyond_its_limit(self, llamacpp: Server) -> None:
        run = ready(llamacpp, contexts=(300, BEYOND), max_tokens=32)

        async def hidden_from() -> None:
            await run.open(lambda now: None)
            flagged = await run.visit(BEYOND, 1)
            assert "not sent: 18,000 + 32 tokens do not fit" in str(flagged.skipped)
            assert run.session is not None
            run.session.facts = replace(run.session.facts, context_limit=Absent("hidden"))
            refused = await run.visit(BEYOND, 1)
            assert "not sent" not in str(refused.skipped)
            assert re.search(r"^context overflow: .*exceeds.* context size", str(refused.skipped))
            assert (await run.visit(300, 1)).usable
            run.close()

        with off_the_servers_core():
            asyncio.run(hidden_from())
        assert [run.verdict(p).status for p in run.points[:2]] == ["skipped", "skipped"]
        assert not run.died

    def test_a_replayed_prompt_comes_out_of_the_cache(
        self, llamacpp: Server, tmp_path: Path
    ) -> None:
        messages = [{"role": "user", "content": PROSE}]
        path = recorded(tmp_path, messages=messages, max_tokens=40, temperature=0)
        done = command(llamacpp, tmp_path, "--request", str(path), "--repeats", "2")
        (case,) = done.record["cases"]
        first, second = (answer["metrics"] for answer in case["answers"])
        assert first["cached_tokens"] < 64 < first["prompt_tokens"]
        assert second["cached_tokens"] >= second["prompt_tokens"] - 8
        assert [f["cause"] for f in case["findings"]] == ["prefix-cache-hit"]
        assert case["id"] == "request"
        assert case["answers"][0]["asked_tokens"] == 40

    def test_four_streams_on_two_slots(self, llamacpp: Server) -> None:
        run = swept(llamacpp, contexts=(300,), concurrency=(4,), max_tokens=200)
        (point,) = run.points
        assert len(point.usable) == 4
        first = sorted(float(t.measurement.first_token_s) for t in point.trials)
        last = sorted(float(t.measurement.last_token_s) for t in point.trials)
        # The third and the fourth had to wait until one of the others was done.
        assert first[2] > last[0]
        assert first[1] < last[0] / 2
        total, each = point.total_tok_s(), point.decode_tok_s
        assert not isinstance(total, Absent)
        assert not isinstance(each, Absent)
        # No more at once than two streams, and never more than were made in the whole time.
        assert 4 * 199 / last[3] < total < 2.5 * each
        assert "foreign-traffic" not in causes(run)

    def test_nothing_but_empty_texts(self, llamacpp_tied: Server) -> None:
        _no_figure_is_made_up(swept(llamacpp_tied, contexts=(300, 600), max_tokens=64))

    def test_the_suite(self, llamacpp: Server, pytester: pytest.Pytester) -> None:
        floors = pytester.makefile(".toml", floors=FLOORS.format(least=0.2))
        suite = ("--pyargs", "verify_attn.live.suite", "-p", "no:cacheprovider", "-p", "no:xdist")
        points = ("--verify-attn-contexts", "256,1k,32k", "--verify-attn-max-tokens", "200")
        with off_the_servers_core():
            result = pytester.runpytest_subprocess(
                *suite, "--verify-attn-server", llamacpp.url, *points, "-rs",
                "--verify-attn-floors", str(floors), "--verify-attn-budget", "20",
            )  # fmt: skip
        result.assert_outcomes(passed=2, skipped=1)
        result.stdout.fnmatch_lines(["*context overflow: not sent*"])


def _seen_over_counted(trial: Trial, answer: Answer, pinned: float) -> tuple[float, float]:
    """What arrivals say that a step commits and takes, each over the server's own figure."""
    m, counted = trial.measurement, trial.acceptance
    assert isinstance(counted, Acceptance)
    # Each draft is accepted by a throw of dice, so that an answer of 500 tokens has a standard
    # deviation of 6 % (at 4 a step): five of them.
    assert counted.committed_per_step == pytest.approx(pinned, rel=0.3)
    assert m.timeline.source.startswith("one an event")
    assert m.steps.kind == "bursts"
    assert trial.committed_per_step == counted.committed_per_step
    committed = float(counted.committed_per_step)
    step_ms = committed / own_rate(answer) * 1e3
    return float(m.committed_per_step) / committed, float(trial.step_ms) / step_ms


class TestSpeculationOfLlamaCpp:
    """One event a token: what a step commits is seen in nothing but when they come."""

    @pytest.mark.parametrize("pinned", [4.0, 2.0])
    def test_bursts_say_what_a_step_commits(
        self, pinned: float, llamacpp_synth4: Server, llamacpp_synth2: Server, say: Say
    ) -> None:
        server = {4.0: llamacpp_synth4, 2.0: llamacpp_synth2}[pinned]
        for attempt in range(TRIES):  # steps of 3 ms run together where a busy machine stops us
            before = server.held_up_s()
            run = swept(server, contexts=(512,), max_tokens=500, repeats=3, seed=attempt)
            held_s = server.held_up_s() - before
            ratios = [_seen_over_counted(*each, pinned) for each in answers(run)]
            counts = [float(t.acceptance.committed_per_step) for t, _ in answers(run)]
            assert run.points[0].committed_per_step == statistics.median(counts)
            assert not causes(run) & {"chunk-interval", "proxy-buffering", "foreign-traffic"}
            off = max(abs(statistics.median(each) - 1) for each in zip(*ratios, strict=True))
            if off < 0.05:
                break
            say(f"bursts of {pinned:g} are swept anew: {ratios}, held up for {held_s:.2f} s")
        # Two steps that arrive as one were held up for one's time at least.
        decode_s = sum(float(t.measurement.last_token_s) for t, _ in answers(run))
        assert off < 0.05 + held_s / decode_s, ratios

    def test_a_draft_that_is_right_for_a_while(self, llamacpp_half_draft: Server) -> None:
        server = llamacpp_half_draft
        assert server.draft
        # An answer follows its prompt's last token: one that the draft goes on from rightly.
        vocabulary = Vocabulary(512)
        texts = {token: vocabulary.text(token) for token in range(512)}
        letters = [token for token, text in texts.items() if text in set(ascii_letters)]
        last = max(letters, key=lambda token: _right_for(server, token))
        prompt = f"{PROSE}\n{texts[last]}"
        body = {"prompt": prompt, "max_tokens": 300, "temperature": 0, "model": "tiny"}
        run = swept(server, request=body, endpoint="completions")
        ((trial, _),) = answers(run)
        status, whole = ask(server.port, "/v1/completions", body)
        assert status == 200
        ids = server.truth.ids(json.loads(whole)["choices"][0]["text"], 300)
        assert ids
        steps = server.truth.steps(server.draft, ids, 7)
        assert max(steps[1:10]) == 8
        end = next(at for at, n in zip(accumulate(steps), steps, strict=True) if at > 1 and n < 8)
        assert trial.committed_per_step == pytest.approx(299 / (len(steps) - 1), rel=0.01)
        (falls,) = (f for f in trial.findings if f.cause == "acceptance-falls")
        said = re.search(r"largest change at token (\d+) \((\S+) to (\S+)\)", falls.evidence)
        assert said, falls
        assert int(said[1]) == pytest.approx(end, abs=24)
        assert float(said[2]) == pytest.approx(8, abs=1.5)
        assert float(said[3]) == pytest.approx(1, abs=0.5)


def _right_for(server: Server, token: int) -> int:
    """How many tokens after this one the draft gets right."""
    assert server.draft
    pairs = zip(server.truth.follow(token), server.draft.follow(token), strict=False)
    return next(i for i, (true, drafted) in enumerate(pairs) if true != drafted)


class TestTransformersServe:
    def test_the_model_must_be_named(self, hf_serve: Server, tmp_path: Path) -> None:
        done = command(hf_serve, tmp_path, "--contexts", "300")
        assert done.exit_code == 2
        assert "names no model" in done.stderr
        assert "HTTP 500" in done.stderr
        assert "--model" in done.stderr

    def test_what_it_refuses_is_left_out(self, hf_serve: Server, tmp_path: Path) -> None:
        words = ("--model", hf_serve.model, "--contexts", "300,600", "--max-tokens", "100")
        done = command(hf_serve, tmp_path, *words)
        assert done.exit_code in (0, 3), done.stderr
        server = done.record["server"]
        assert server["facts"]["engine"] == "transformers serve"
        refused = server["extras_refused"]
        assert {"ignore_eos", "cache_prompt", "return_token_ids"} <= set(refused)
        assert all("Unexpected fields" in words for words in refused.values())
        assert set(server["extras_sent"]) & set(refused) == set()
        sized_by = server["calibration"]["sized_by"]
        assert sized_by == "tokens a character (/tokenize: HTTP 404)"
        for case in done.record["cases"]:
            (answer,) = case["answers"]
            # No tokenizer to ask: what holds on average is off for one text of it.
            assert case["metrics"]["prompt_tokens"] == pytest.approx(
                case["parameters"]["context"], rel=0.1
            )
            assert answer["outcome"] == "complete"  # without a [DONE]
            assert answer["metrics"]["completion_tokens"] == 100
            assert answer["tokens_exact"]
            assert case["metrics"]["committed_per_step"] == 1
            assert "metrics unavailable: HTTP 404" in answer["absent"]["server"]

    def test_no_context_check(self, hf_serve: Server) -> None:
        run = swept(hf_serve, contexts=(300, BEYOND), max_tokens=24)
        assert [point.skipped for point in run.points] == [None, None]
        context = run.points[1].context
        assert not isinstance(context, Absent)
        assert context > 16384 - 24
        assert all(point.usable for point in run.points)
        assert run.record([])["server"]["facts"]["context_limit"]["absent"]

    def test_nothing_but_empty_texts(self, hf_serve_tied: Server) -> None:
        _no_figure_is_made_up(swept(hf_serve_tied, contexts=(300,), max_tokens=64))


def _no_figure_is_made_up(run: Run) -> None:
    """64 tokens by the server's count and not one letter: no rate, no first token, but reasons."""
    for case in run.record([])["cases"]:
        assert case["status"] == "inconclusive"
        assert "no event carried any text" in case["reason"]
        for name in ("decode_tok_s", "first_token_s", "committed_per_step", "step_ms"):
            assert name not in case["metrics"]
            assert case["absent"][name]
        (answer,) = case["answers"]
        assert answer["metrics"]["completion_tokens"] == 64
        assert answer["outcome"] == "complete"
        assert "whole_tok_s" not in answer["metrics"]
        assert answer["windows"] == []
