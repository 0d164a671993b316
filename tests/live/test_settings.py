"""What a sweep is told, and where to."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from verify_attn.geometry import LAYERS, PRESETS
from verify_attn.hardware import GPUS, HardwareError, gpu_model
from verify_attn.live.requests import (
    EXTRAS,
    Dialect,
    RequestError,
    asked_tokens,
    recorded_request,
    replayed,
)
from verify_attn.live.saved import read_saved
from verify_attn.live.settings import Settings, SettingsError, parse_sizes, point_name, size_name
from verify_attn.live.target import Target, TargetError
from verify_attn.record import RecordError
from verify_attn.sweep_command import kv_read


def test_sizes() -> None:
    assert parse_sizes("512, 1k,64K,184728") == (512, 1024, 65536, 184728)
    for bad in ("", "1k,", "-1", "1.5k", "k", "1kk", "1m", "٣"):
        with pytest.raises(SettingsError, match="is no size"):
            parse_sizes(bad)
    assert [size_name(n) for n in (512, 1024, 65536, 184728, 0)] == [
        "512", "1k", "64k", "184728", "0",
    ]  # fmt: skip
    assert point_name(65536, 1) == "ctx=64k"
    assert point_name(65536, 4) == "ctx=64k,streams=4"


def test_points_are_ascending_and_once() -> None:
    settings = Settings(contexts=(4096, 1024, 4096), concurrency=(1, 4, 1))
    assert settings.points() == [(1024, 1), (4096, 1), (1024, 4), (4096, 4)]
    assert Settings(request={"prompt": "x"}).points() == [(0, 1)]


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"contexts": ()}, "contexts"),
        ({"contexts": (0,)}, "contexts"),
        ({"concurrency": (65,)}, "concurrency"),
        ({"concurrency": ()}, "concurrency"),
        ({"max_tokens": 1}, "one token has no rate"),
        ({"repeats": 0}, "repeats"),
        ({"corpus": "lorem"}, "mixed, prose"),
        ({"window_tokens": 1}, "window_tokens"),
        ({"decode_limit_s": 0.0}, "time limits"),
        ({"stall_s": -1.0}, "time limits"),
        ({"first_token_s": -1.0}, "time limits"),
    ],
)
def test_impossible_settings(given: dict, rule: str) -> None:
    with pytest.raises(SettingsError, match=rule):
        Settings(**given)


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        ("https://h/openai/v1/", "https://h/openai"),
        ("http://h/v1/chat/completions", "http://h"),
        ("http://[::1]:80/v1", "http://[::1]:80"),
    ],
)
def test_roots(url: str, root: str) -> None:
    assert Target.parse(url).root == root


@pytest.mark.parametrize(
    "url",
    ["", "h:8000", "ftp://h", "http://", "http://h:99999", "http://h/?key=secret", "http://h#x"],
)
def test_no_url(url: str) -> None:
    with pytest.raises(TargetError) as caught:
        Target.parse(url)
    assert "secret" not in str(caught.value)


def test_secrets_stay_out_of_sight() -> None:
    with pytest.raises(TargetError, match="VERIFY_ATTN_API_KEY") as caught:
        Target.parse("http://me:hunter2@h")
    assert "hunter2" not in str(caught.value)
    target = Target.parse("http://h", "sk-verysecret")
    assert "verysecret" not in repr(target)
    assert target.scrub("bad key sk-verysecret!") == "bad key [API key]!"
    with pytest.raises(TargetError, match="no HTTP header") as caught:
        Target.parse("http://h", "sk-geheim\n")
    assert "geheim" not in str(caught.value)


class TestDialect:
    def test_all_extras_at_first(self) -> None:
        body = Dialect("chat", "m").body("hello", 7)
        assert body["messages"] == [{"role": "user", "content": "hello"}]
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert (body["max_tokens"], body["temperature"], body["stream"]) == (7, 0.0, True)
        assert body["ignore_eos"] is True

    def test_a_named_field_is_given_up_alone(self) -> None:
        dialect = refuse(Dialect("chat", "m"), "Unexpected fields in the request: {'ignore_eos'}")
        assert "ignore_eos" not in dialect.extras
        assert len(dialect.extras) == len(EXTRAS) - 1
        assert "Unexpected" in dialect.refused["ignore_eos"]

    def test_unnamed_refusals_end(self) -> None:
        dialect, rounds = Dialect("completions", "m"), 0
        while (fewer := dialect.without(refusal("bad request"))) is not None:
            dialect, rounds = fewer, rounds + 1
        assert dialect.extras == ()
        assert rounds == len(EXTRAS)
        assert set(dialect.body("x", 2)) == {
            "model", "stream", "prompt", "max_tokens", "temperature",
        }  # fmt: skip

    def test_the_other_name_of_the_length(self) -> None:
        words = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead"
        dialect = refuse(Dialect("chat", "m"), words)
        assert dialect.body("x", 3)["max_completion_tokens"] == 3
        assert dialect.extras == tuple(EXTRAS)

    def test_temperature(self) -> None:
        dialect = refuse(Dialect("chat", "m"), "Unsupported value: temperature must be 1")
        assert "temperature" not in dialect.body("x", 3)


def refusal(words: str):
    from verify_attn.live.client import Answer

    body = json.dumps({"detail": words}).encode()
    return Answer({}, "/", 0, 0, 422, "application/json", body)


def refuse(dialect: Dialect, words: str) -> Dialect:
    fewer = dialect.without(refusal(words))
    assert fewer is not None
    return fewer


class TestRecordedRequest:
    def test_its_own_fields_stay(self, tmp_path: Path) -> None:
        path = tmp_path / "r.json"
        path.write_text(json.dumps({"model": "a", "messages": [], "temperature": 0.7,
                                    "max_tokens": 9, "stream": False}))  # fmt: skip
        endpoint, body = recorded_request(path)
        assert endpoint == "chat"
        sent = replayed(Dialect("chat", "b"), body, 1500)
        assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("a", 0.7, 9)
        assert sent["stream"] is True
        assert "ignore_eos" not in sent
        assert sent["stream_options"]["include_usage"] is True
        assert asked_tokens(sent) == 9

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", "--request"),
            ("[]", "holds no request"),
            ('{"model": "m"}', "messages"),
            ('{"messages": "hi"}', "must be a list"),
            ('{"prompt": "hi", "n": 2}', "one answer"),
        ],
    )
    def test_what_cannot_be_replayed(self, tmp_path: Path, text: str, words: str) -> None:
        path = tmp_path / "r.json"
        path.write_text(text)
        with pytest.raises(RequestError, match=words):
            recorded_request(path)


def test_kv_read() -> None:
    kv = kv_read("kimi-k2.6-tp8", "rtx-pro-6000", "bf16")
    assert kv is not None
    assert kv.bytes_per_token == 61 * 576 * 2  # layers, latent and rope, bf16
    assert kv.gb_per_s == 1792
    fp8 = kv_read("kimi-k2.6-tp8", "h200", "fp8")
    assert fp8 is not None
    assert fp8.bytes_per_token == 61 * 576
    assert kv_read(None, None, "bf16") is None
    with pytest.raises(SettingsError, match="go together"):
        kv_read("kimi-k2.6-tp8", None, "bf16")
    with pytest.raises(SettingsError, match="no whole model"):
        kv_read("tiny", "h200", "bf16")
    with pytest.raises(HardwareError, match="h200"):
        gpu_model("h300")
    assert set(LAYERS) <= set(PRESETS)
    assert all(gpu.source and gpu.gb_per_s > 100 for gpu in GPUS.values())


class TestSavedRun:
    def write(self, path: Path, cases: list[dict]) -> Path:
        path.write_text(json.dumps({"schema_version": 1, "cases": cases}))
        return path

    def case(self, context: int, rate: float, streams: int = 1) -> dict:
        return {
            "status": "pass", "parameters": {"concurrency": streams},
            "metrics": {"prompt_tokens": context, "decode_tok_s": rate, "step_ms": 5.0},
        }  # fmt: skip

    def test_between_points_the_time_of_a_token_is_interpolated(self, tmp_path: Path) -> None:
        saved = read_saved(
            self.write(tmp_path / "s.json", [self.case(3000, 50.0), self.case(1000, 100.0)])
        )
        assert saved.rate_at(1000, 1) == 100
        assert saved.rate_at(2000, 1) == pytest.approx(1 / 0.015)
        assert saved.rate_at(3200, 1) == 50  # within a tenth
        assert saved.rate_at(4000, 1) is None
        assert saved.rate_at(2000, 2) is None
        near = saved.near(1040, 1)
        assert near is not None
        assert (near.step_ms, near.committed) == (5.0, None)

    @pytest.mark.parametrize(
        "change", [{"metrics": None}, {"metrics": {"prompt_tokens": "x"}}, {"parameters": {}}]
    )
    def test_no_sweep(self, tmp_path: Path, change: dict) -> None:
        with pytest.raises(RecordError, match="no measured point"):
            read_saved(self.write(tmp_path / "s.json", [{**self.case(1000, 1.0), **change}]))


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().seed = 1  # type: ignore[misc]
