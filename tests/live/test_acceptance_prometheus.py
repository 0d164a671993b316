"""Every row of the table of executed Prometheus inputs, and the answers that are no metrics."""

from __future__ import annotations

import asyncio
import http.server
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.metrics_text import RECORDINGS, recorded, reply, scrape
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import Samples, parse_metrics, read_metrics
from verify_attn.live.reply import Reply, Unreachable


def test_names_match_with_and_without_total() -> None:
    samples = scrape("# TYPE a counter\na_total 3\nb 4\n")
    assert samples.sum("a") == samples.sum("a_total") == 3
    assert samples.sum("b") == samples.sum("b_total") == 4
    assert samples.sum("c") is None


def test_two_spellings_are_not_added() -> None:
    samples = scrape("a 1\na_total 3\n")
    assert samples.sum("a") == 1
    assert samples.sum("a_total") == 3


def test_created_is_a_moment_and_no_count() -> None:
    samples = recorded("vllm_llama_ngram_metrics.txt")
    assert not any(name.endswith("_created") for name in samples.names)
    assert samples.sum("vllm:spec_decode_num_drafts") == 60
    (began,) = samples.created("vllm:spec_decode_num_drafts_total")
    assert began > 1.79e9


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "nan", "1e400"])
def test_non_finite_values_are_dropped(value: str) -> None:
    assert scrape(f"x {value}\ny 1\n").sum("x") is None


def test_a_sum_that_overflows_is_none() -> None:
    assert scrape('x{a="1"} 1e308\nx{a="2"} 1e308\n').sum("x") is None


def test_escaped_quotes_braces_and_commas_in_labels() -> None:
    samples = scrape('x{a="q\\"u,o}te",b="\\\\"} 2\n')
    assert samples.by_label("x", "a") == {'q"u,o}te': 2}
    assert samples.sum("x", b="\\") == 2
    assert samples.sum("x", b="other") is None


@pytest.mark.parametrize(
    "text",
    [
        "# TYPE x counter\r\nx_total 5\r\n",
        "# TYPE x counter\nx_total 5",
        "\ufeffx_total 5\n",
        "# HELP x h\n# HELP x h\n# TYPE x counter\n# TYPE x counter\nx_total 5\n",
    ],
    ids=["crlf", "no-final-newline", "bom", "doubled-help-and-type"],
)
def test_frames_that_are_right(text: str) -> None:
    assert scrape(text).sum("x") == 5


def test_an_exemplar_in_classic_text_leaves_the_value_alone() -> None:
    # The classic parser takes 0.5 for a timestamp; no timestamp is kept.
    samples = scrape('x_bucket{le="1"} 1 # {trace_id="x"} 0.5\ny 7 1700000000000\n')
    assert samples.sum("x_bucket") == 1
    assert samples.sum("y") == 7


def test_openmetrics_by_its_content_type() -> None:
    text = '# TYPE x counter\nx_total 5 # {trace_id="x"} 0.5\nx_created 123\n# EOF\n'
    samples = scrape(text, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert samples.sum("x") == 5
    assert samples.created("x") == {123.0}


def test_openmetrics_without_its_eof_falls_back() -> None:
    samples = scrape("# TYPE x counter\nx_total 5\n", "application/openmetrics-text")
    assert samples.sum("x") == 5


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (404, "<html><body>404 Not Found</body></html>", "text/html"),
        (401, '{"error": "no key"}', "application/json"),
        (200, "<html>sign in</html>", "text/html; charset=utf-8"),
        (200, "<!doctype html>", "text/plain"),
        (200, '{"a": 1}', "application/json"),
        (200, "", "text/plain"),
        (200, "# HELP only a comment\n", "text/plain"),
        (200, "Not Found", "text/plain"),
        (501, '{"error": {"message": "no --metrics"}}', "application/json"),
        (200, "x 1\nx{ 2\n", "text/plain"),
        (200, b"\xff\xfe\x00", "text/plain"),
    ],
)
def test_aisix_gateway_pages_are_unavailable_and_not_no_speculation(
    status: int, body: str | bytes, content_type: str
) -> None:
    found = parse_metrics(reply(body, status, content_type))
    assert isinstance(found, Absent)
    assert found.reason.startswith("metrics unavailable: ")


def test_a_missing_switch_is_named() -> None:
    found = parse_metrics(reply("", 404))
    assert isinstance(found, Absent)
    assert "--enable-metrics" in found.reason


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*_metrics.txt")), ids=lambda p: p.stem)
def test_recorded_scrapes_are_read(path: Any) -> None:
    assert len(scrape(path.read_bytes()).names) > 10


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path == "/metrics"
        body = (RECORDINGS / "llamacpp_synth4_metrics.txt").read_bytes() if found else b"<html>"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4" if found else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_a_scrape_over_a_socket(server: str) -> None:
    async def fetch(method: str, path: str, *, body: Any = None, timeout_s: float = 30.0) -> Reply:
        try:
            with urllib.request.urlopen(server + path, timeout=timeout_s) as answer:
                return Reply(answer.status, answer.headers["content-type"], answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers["content-type"], error.read())

    samples = asyncio.run(read_metrics(fetch))
    assert isinstance(samples, Samples)
    assert samples.sum("llamacpp:spec_decode_num_drafts") == 1543
    found = asyncio.run(read_metrics(fetch, "/other"))
    assert isinstance(found, Absent)
    assert "HTTP 404" in found.reason


def test_an_unreachable_server_is_absent_with_its_words() -> None:
    async def fetch(method: str, path: str, *, body: Any = None, timeout_s: float = 30.0) -> Reply:
        raise Unreachable("connection refused")

    found = asyncio.run(read_metrics(fetch))
    assert found == Absent("metrics unavailable: /metrics: connection refused")
