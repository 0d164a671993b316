"""`verify-attn sweep` as a user starts it: what it refuses, what it survives, what it keeps."""

from __future__ import annotations

import json
import ssl
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result

from tests.live.scripted import Script, ScriptedServer, as_json, reply
from tests.live.truth import Decode, Fault, Scenario, TruthServer
from tests.live.truth.http import Request
from verify_attn.cli import main

KEY = "sk-test-0123456789abcdefghijklmnopqrstuvwxyz"
QUICK = Decode(step_s=0.002)
SMALL = ("--contexts", "500,1k", "--max-tokens", "100", "--no-flush")


def sweep(url: str, *args: str, cwd: Path, **env: str) -> Result:
    """In this process, with the key and the proxies that ``env`` has and no others."""
    away = dict.fromkeys(("VERIFY_ATTN_API_KEY", "SSL_CERT_FILE"))
    with chdir(cwd):
        return CliRunner().invoke(main, ["sweep", "--url", url, *args], env={**away, **env})


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} in a record")


def record(path: Path) -> dict[str, Any]:
    """A record, in which NaN or an infinity would be an error."""
    found: dict[str, Any] = json.loads(path.read_text(), parse_constant=no_constant)
    return found


def statuses(path: Path) -> dict[str, str]:
    return {case["id"]: case["status"] for case in record(path)["cases"]}


# -- what it refuses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000", "give http://HOST:PORT"),
        ("ftp://host", "give http://HOST:PORT"),
        ("http://host:99999", "is no URL"),
        (f"http://me:{KEY}@host", "put the key into the environment variable"),
        (f"http://host/v1?key={KEY}", "give the server's root alone"),
    ],
)
def test_wrong_url(url: str, said: str, tmp_path: Path) -> None:
    done = sweep(url, cwd=tmp_path)
    assert done.exit_code == 2
    assert said in done.stderr
    assert KEY not in done.stderr


def test_no_server(tmp_path: Path) -> None:
    done = sweep("http://127.0.0.1:9", cwd=tmp_path)
    assert done.exit_code == 4
    assert "no answer from http://127.0.0.1:9" in done.stderr
    unknown = sweep("http://no-such-host.invalid", cwd=tmp_path)
    assert unknown.exit_code == 4
    assert "no such host" in unknown.stderr


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def models(request: Request) -> Script:
    return as_json({"data": []}) if request.path == "/v1/models" else as_json({}, 404)


def test_tls_error(authority: trustme.CA, tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    with ScriptedServer(models, tls) as server:
        done = sweep(server.url, cwd=tmp_path)
        assert done.exit_code == 4
        assert "certificate verify failed" in done.stderr
        assert server.requests == []
        # An authority of one's own, the usual way.
        with authority.cert_pem.tempfile() as path:
            trusted = sweep(server.url, cwd=tmp_path, SSL_CERT_FILE=path)
        assert trusted.exit_code == 2
        assert "names no model" in trusted.stderr
        assert server.requests
    with ScriptedServer(models) as plain:
        done = sweep(plain.url.replace("http", "https"), cwd=tmp_path)
        assert done.exit_code == 4
        assert "TLS failed" in done.stderr


@pytest.mark.parametrize("model", [(), ("--model", "m")])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_key_is_sent_and_never_shown(kind: str, model: tuple[str, ...], tmp_path: Path) -> None:
    """The server quotes the key back in its error, and is cut short in the middle of it."""
    words = f"Incorrect API key provided: {KEY}. {'x' * 180} Bearer {KEY} and {KEY}"
    body = json.dumps({"error": {"message": words}}) if kind == "application/json" else words
    with ScriptedServer(lambda r: reply(401, body.encode(), kind)) as server:
        args = (*model, "--json", "r.json")
        done = sweep(server.url, *args, cwd=tmp_path, VERIFY_ATTN_API_KEY=KEY)
        assert all(r.headers["authorization"] == f"Bearer {KEY}" for r in server.requests)
        assert len(server.asked) == len(model) // 2
    assert done.exit_code == 2
    assert "refuses the API key" in done.stderr
    assert "VERIFY_ATTN_API_KEY" in done.stderr
    for text in (done.stdout, done.stderr, *(p.read_text() for p in tmp_path.iterdir())):
        assert KEY[:12] not in text


@pytest.mark.parametrize("key", [KEY, "pass", "status", "1"])
def test_key_in_a_run_is_in_no_record(key: str, tmp_path: Path) -> None:
    """A server that echoes it everywhere; a key that is a word of the record breaks nothing."""
    scenario = Scenario(model=f"model-of-{key}", decode=QUICK, fault=Fault(api_key=key))
    with TruthServer(scenario) as server:
        args = (*SMALL, "--reads", "--json", "r.json")
        done = sweep(server.url, *args, cwd=tmp_path, VERIFY_ATTN_API_KEY=key)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "pass" in done.stdout
    if len(key) >= 8:
        assert key not in done.stdout + done.stderr + (tmp_path / "r.json").read_text()
    assert set(statuses(tmp_path / "r.json").values()) == {"pass"}


def test_key_is_asked_for(tmp_path: Path) -> None:
    with TruthServer(Scenario(fault=Fault(api_key=KEY))) as server:
        done = sweep(server.url, cwd=tmp_path)
    assert done.exit_code == 2
    assert "VERIFY_ATTN_API_KEY" in done.stderr


def test_unknown_model(tmp_path: Path) -> None:
    with TruthServer(Scenario()) as server:
        done = sweep(server.url, "--model", "no-such-model", cwd=tmp_path)
    assert done.exit_code == 2
    assert "no-such-model" in done.stderr
    assert "--model" in done.stderr


@pytest.mark.parametrize("args", [(), ("--model", "m")])
def test_html_instead_of_json(args: tuple[str, ...], tmp_path: Path) -> None:
    with TruthServer(Scenario(fault=Fault(html=True))) as server:
        done = sweep(server.url, *args, cwd=tmp_path)
    assert done.exit_code == 2
    assert "OpenAI-compatible server" in done.stderr


@pytest.mark.parametrize("args", [(), ("--model", "m")])
def test_redirect_is_named_and_not_followed(args: tuple[str, ...], tmp_path: Path) -> None:
    moved = reply(308, b"", "text/html", "location: https://elsewhere.invalid/")
    with ScriptedServer(lambda request: moved) as server:
        done = sweep(server.url, *args, cwd=tmp_path)
    assert done.exit_code == 2
    assert "https://elsewhere.invalid/" in done.stderr


def test_server_that_is_not_ready(tmp_path: Path) -> None:
    with TruthServer(Scenario(fault=Fault(unavailable=True))) as server:
        done = sweep(server.url, "--model", "truth", cwd=tmp_path)
    assert done.exit_code == 4
    assert "Loading model" in done.stderr


FLOOR = """
schema_version = 1
[[floor]]
name = "all"
unit = "tok/s"
points = [[100, {}], [9000, {}]]
"""


def test_floors_with_a_typo(tmp_path: Path) -> None:
    (tmp_path / "floors.toml").write_text(FLOOR.format(1, 1).replace("unit", "units"))
    done = sweep("http://127.0.0.1:9", "--floors", "floors.toml", cwd=tmp_path)
    assert done.exit_code == 2
    assert "units" in done.stderr
    assert "unit" in done.stderr.replace("units", "")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no.json"),
        (b"\xff\xfe", "no.json"),
        (b"{", "no.json"),
        (b"[" * 5000, "no.json"),
        (b"{}", "holds no request"),
        (b'{"messages": "hi"}', "must be a list"),
        (b'{"messages": [], "n": 3}', "n is 3"),
    ],
)
def test_unreadable_request(content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "no.json").write_bytes(content)
    done = sweep("http://127.0.0.1:9", "--request", "no.json", cwd=tmp_path)
    assert done.exit_code == 2, done.stderr
    assert said in done.stderr


def test_floors_that_hold_nowhere_are_told(tmp_path: Path) -> None:
    text = 'schema_version = 1\n[[floor]]\nname = "far"\nunit = "of shortest context"\n'
    text += "points = [[500, 0.9], [64000, 0.5]]\n"
    (tmp_path / "floors.toml").write_text(text)
    with TruthServer(Scenario(decode=QUICK)) as server:
        one = ("--contexts", "500", "--max-tokens", "100", "--no-flush")
        done = sweep(server.url, *one, "--floors", "floors.toml", cwd=tmp_path)
    assert done.exit_code == 0
    assert "no floor that was given holds at these points" in done.stdout


def test_bounds_of_a_few_steps_are_none(tmp_path: Path) -> None:
    short = ("--contexts", "500", "--max-tokens", "20", "--no-flush", "--json", "r.json")
    with TruthServer(Scenario(decode=Decode(step_s=0.01, drafts=4, pattern=(5,)))) as server:
        done = sweep(server.url, *short, cwd=tmp_path)
    assert done.exit_code == 0
    (case,) = record(tmp_path / "r.json")["cases"]
    assert "decode_tok_s_low" not in case["metrics"]
    assert "steps are too few for bounds, it takes 16" in case["absent"]["decode_tok_s_low"]
