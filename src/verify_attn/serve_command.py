"""``verify-attn serve``: build the engine, say what it is, answer until told to stop."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console

from verify_attn.file_errors import why
from verify_attn.record import FAILED, INTERRUPTED, PASSED
from verify_attn.terminal import error, output, printable

if TYPE_CHECKING:
    from verify_attn.engine.options import Options
    from verify_attn.engine.parallel import Group
    from verify_attn.engine.scheduler import Scheduler

KEY_VARIABLE = "VERIFY_ATTN_API_KEY"
# Streams get so long to end after a stop signal.
GRACE_S = 3


def options_of(options: dict[str, Any], context: str | None, kv_tokens: str | None) -> Options:
    """From the command line's values; raises `OptionError` or `SettingsError`."""
    from verify_attn.engine.options import Options
    from verify_attn.live.settings import SettingsError, parse_sizes

    def size(name: str, text: str | None) -> int | None:
        if text is None:
            return None
        sizes = parse_sizes(text)
        if len(sizes) > 1:
            raise SettingsError(f"--{name} is {text!r}; give one size")
        return sizes[0]

    return Options(
        context=size("context", context), kv_tokens=size("kv-tokens", kv_tokens), **options
    )


def run_serve(asked: Options, host: str, port: int) -> int:
    """Serve until a signal; returns the exit code."""
    api_key = os.environ.get(KEY_VARIABLE)
    wrong_start = _missing() or _bad_key(api_key)
    if wrong_start is not None:
        return error(wrong_start)
    from verify_attn.engine import build, parallel
    from verify_attn.engine.http.metrics import Metrics

    started = time.monotonic()
    try:
        group = parallel.join(build.device_of(asked).type)
        with Console(stderr=True, emoji=False).status(f"loading {printable(asked.model)}") as _:
            if group is not None and group.rank > 0:
                return _follow(asked, group)
            scheduler = build.open_engine(asked, Metrics(), group)
    except build.REFUSALS as wrong:
        return error(str(wrong))
    try:
        listener = _listen(host, port)
    except (OSError, ValueError) as wrong:  # a name that no name can be is the latter
        scheduler.close()
        return error(
            f"cannot listen on {host}:{port}: {_word(wrong)}; give another --port, or 0 for any, "
            "or another --host"
        )
    scheduler.start()
    try:
        return _serve(scheduler, listener, api_key, started)
    finally:
        scheduler.close()


def _follow(asked: Options, group: Group) -> int:
    """A rank other than 0 does what rank 0 tells it."""
    from verify_attn.engine import build, parallel

    parallel.serve_rank(build.open_runner(asked, group), group)
    return PASSED


def _serve(
    scheduler: Scheduler, listener: socket.socket, api_key: str | None, started: float
) -> int:
    import uvicorn

    from verify_attn.engine.http.app import create_app

    app = create_app(scheduler, api_key=api_key)
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=GRACE_S, lifespan="off",
        use_colors=False,  # else it asks standard output, which may be closed
    )  # fmt: skip
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    server = uvicorn.Server(config)

    def end(number: int, frame: object) -> None:
        """SIGTERM before the server listens to it; and once more after, when it ends."""
        server.should_exit = True

    signal.signal(signal.SIGTERM, end)
    try:
        _say(scheduler, f"http://{shown}:{port}", api_key, time.monotonic() - started)
    except OSError as wrong:
        return error(f"cannot write to standard output: {why(wrong)}")
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return INTERRUPTED
    died = scheduler.alive()
    if died is not None:
        return error(f"the engine died: {died}", FAILED)
    return PASSED


def _say(scheduler: Scheduler, url: str, api_key: str | None, seconds: float) -> None:
    about = scheduler.about
    console = output()
    console.print(
        f"{printable(scheduler.model_name)} on {about['device']} ({about['dtype']}), kernel "
        f"{printable(str(about['kernel']))}, page_size {about['page_size']}, "
        f"{about['kv_tokens']:,} tokens of KV, context {scheduler.max_context:,}; drafter "
        f"{scheduler.drafter}, budget {scheduler.budget}; {about['verify']}",
        soft_wrap=True,
    )
    for note in scheduler.notes:
        console.print(printable(note), soft_wrap=True)
    if not _loopback(url):
        open_to = "everyone who has the API key" if api_key else "everyone who can reach it"
        console.print(f"listens beyond this machine: open to {open_to}", soft_wrap=True)
    console.print(f"ready after {seconds:.1f} s: {url}", soft_wrap=True)
    if sys.stdout is not None:  # None where it was closed before the start
        sys.stdout.flush()


def _loopback(url: str) -> bool:
    host = url.split("//", 1)[1].rsplit(":", 1)[0].strip("[]")
    return ipaddress.ip_address(host).is_loopback


def _listen(host: str, port: int) -> socket.socket:
    """Bound before the server says that it is ready, so that the port it prints is its own."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=2048)


def _word(wrong: Exception) -> str:
    """The system's, without its number."""
    return (wrong.strerror if isinstance(wrong, OSError) else None) or str(wrong)


def _bad_key(key: str | None) -> str | None:
    """What a header cannot hold would lock everyone out; an empty one is surely a mistake."""
    if key is None or (key and all("!" <= c <= "~" for c in key)):
        return None
    what = "has characters that no header can hold" if key else "is set and empty"
    return f"{KEY_VARIABLE} {what}; give printable ASCII without spaces, or unset it to ask nobody"


def _missing() -> str | None:
    for name in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            return f"serve needs {name}, which is not here: pip install 'verify-attn[serve]'"
    return None
