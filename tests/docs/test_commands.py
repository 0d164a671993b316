"""Every command that the pages show is run here as it stands, or named in `elsewhere.py`.

What is not as it stands: the server's address; and where `RULES` says so, fewer cases.
"""

import contextlib
import fnmatch
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import click
import pytest

from tests.docs.elsewhere import ELSEWHERE
from tests.docs.pages import PAGES, ROOT, commands
from tests.docs.playground import COLLAPSING, playground
from tests.live.truth import TruthServer
from tests.unit.user_kernels import PYTHONPATH
from verify_attn.cli import entry, main
from verify_attn.environment import gpus

ADDRESS = re.compile(r"http://(localhost:8000|127\.0\.0\.1:41811)")


@dataclass(frozen=True)
class Rule:
    """How a command is run.  ``smaller``: text -> text, "" -> text is appended; ``code``: its exit
    code; ``says``: what it must print."""

    code: int = 0
    says: tuple[str, ...] = ()
    smaller: dict[str, str] = field(default_factory=dict)


SLOPE, COLLAPSE = "step-time-linear-in-context", "kimi-k2.6-tp8 --gpu rtx-pro-6000"
SHORT, SHORTER = {"": " --max-tokens 160"}, {"--max-tokens 400": "--max-tokens 160"}
# The first that matches; a `verify-attn` that none matches must end in 0.
RULES = {
    "verify-attn check examples.sibling_leak:verify --only oracle": Rule(1, ("sibling leak",)),
    "verify-attn check my_kernels:* --examples 5000 *": Rule(smaller={"5000": "2"}),
    "verify-attn check my_kernels:*": Rule(smaller={"": " --examples 2"}),
    "verify-attn check": Rule(smaller={"": " --examples 1"}),
    "verify-attn bench*": Rule(3, ("no GPU",)),
    "verify-attn sweep --url * --contexts 1k --max-tokens 400": Rule(0, ("pass",)),
    "verify-attn sweep * --floors floors.toml --json *": Rule(
        1, ("fail ctx=64k: no collapse",), SHORTER
    ),
    "verify-attn sweep * --floors *": Rule(1, ("fail ctx=64k: no collapse", SLOPE), SHORT),
    f"verify-attn sweep *{COLLAPSE}*": Rule(
        3, (f"{SLOPE} [ctx=1k, ", "(high confidence)"), SHORTER
    ),
    "verify-attn sweep * --request *": Rule(0, ("request",)),
    "verify-attn sweep *": Rule(3, (SLOPE,), SHORT | {"1k,16k,64k": "1k,16k"}),
    "verify-attn report slow.json": Rule(0, ("FAIL: decode falls", SLOPE, "report: slow.html")),
    "verify-attn run --url *": Rule(
        1, (f"{SLOPE} (low confidence); no collapse", "not tested: no GPU", "my-run/report.html"),
        {"--quick": "--quick --examples 1", **SHORTER},
    ),
    "pytest tests/e2e *": Rule(
        0, ("1 passed",),
        {"tests/e2e": str(ROOT / "tests/e2e"), "1k,16k,64k": "1k",
         "": " --verify-attn-max-tokens 160"},
    ),
    "pytest --pyargs *": Rule(smaller={"": " --verify-attn-examples 1 -k 'oracle or lse'"}),
}  # fmt: skip
# Run by tests of their own, below.
BY_HAND = ("python examples/collapsing_server.py*", "verify-attn serve", "curl *",
           "mkdir -p .github/workflows && cp *")  # fmt: skip


def matches(text, patterns):
    """The first pattern that the command has the form of, or None."""
    plain = [(p, re.sub(r"\[", "[[]", p)) for p in patterns]
    return next((p for p, pattern in plain if fnmatch.fnmatchcase(text, pattern)), None)


def here():
    """{page: its commands that are to be run, each the first time that it is shown}."""
    seen, found = set(), {}
    for page in PAGES:
        found[page] = []
        for command in commands(page):
            away = matches(command.text, ELSEWHERE) or matches(command.text, BY_HAND)
            if not away and command.text not in seen:
                found[page].append(command)
            seen.add(command.text)
    return found


TO_RUN = here()
needs_none = pytest.mark.skipif(bool(gpus()), reason="the commands' ends are those without a GPU")


def params(*, live):
    """Each page; those that measure a server apart, since time is measured there."""
    return [
        page for page, found in TO_RUN.items()
        if found and any(ADDRESS.search(c.text) for c in found) is live
    ]  # fmt: skip


# -- the lists ------------------------------------------------------------------------------------


def test_every_command_is_run_or_named():
    stray = [
        f"{c.page}:{c.line}: {c.text}" for found in TO_RUN.values() for c in found
        if not c.text.startswith("verify-attn ") and not matches(c.text, RULES)
    ]  # fmt: skip
    assert not stray, "neither run here nor named in tests/docs/elsewhere.py"


def test_the_lists_name_nothing_that_is_not_shown():
    shown = [c.text for page in PAGES for c in commands(page)]
    idle = [p for p in (*ELSEWHERE, *RULES, *BY_HAND) if not any(matches(t, [p]) for t in shown)]
    # Shown once the README's first command is the run, as others are writing it.
    assert set(idle) <= {"verify-attn run --quick"}


def test_what_is_not_run_is_at_least_a_command_line():
    for page in PAGES:
        for command in commands(page):
            words = shlex.split(command.text)
            if words[0] == "verify-attn":
                verb = main.commands[words[1]]
                try:
                    verb.make_context(words[1], words[2:])
                except click.ClickException as wrong:
                    pytest.fail(f"{page}:{command.line}: {command.text}: {wrong.format_message()}")


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_sentences_are_command_lines_too(page):
    text = re.sub(r"(?ms)^\s*```.*?^\s*```", "", (ROOT / page).read_text())
    for shown in re.findall(r"`verify-attn ([^`]+)`", text):
        words = shlex.split(shown.replace("\n", " "))
        with contextlib.suppress(click.MissingParameter):  # the command's name alone
            main.commands[words[0]].make_context(words[0], words[1:])


def test_every_option_of_pytest_is_one():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    for page in PAGES:
        for command in commands(page):
            if re.search(r"\bpytest\b", command.text):
                for option in re.findall(r" (--[a-z][a-z-]+)", command.text):
                    assert option in done.stdout, f"{page}:{command.line}: {option}"


# -- running them ---------------------------------------------------------------------------------


@pytest.fixture
def pages_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@needs_none
@pytest.mark.parametrize("page", params(live=False))
def test_commands(page, pages_folder, monkeypatch, capfd):
    playground(pages_folder, page)
    for command in TO_RUN[page]:
        run(command, None, monkeypatch, capfd)


@needs_none
@pytest.mark.timing
@pytest.mark.parametrize("page", params(live=True))
def test_commands_with_a_server(page, pages_folder, monkeypatch, capfd):
    playground(pages_folder, page)
    with TruthServer(COLLAPSING, pin=False, spin=False) as server:
        for command in TO_RUN[page]:
            run(command, server.url, monkeypatch, capfd)


def run(command, url, monkeypatch, capfd):
    """In this process where that is the same and faster."""
    rule = RULES.get(matches(command.text, RULES), Rule())
    text = command.text
    for old, new in rule.smaller.items():
        assert old in text, f"{old!r} is not in {text!r}"
        text = text.replace(old, new, 1) if old else text + new
    if url is not None:
        text = ADDRESS.sub(url, text)
    words = shlex.split(text)
    capfd.readouterr()
    if words[0] == "verify-attn" and words[1] != "run":
        monkeypatch.setattr(sys, "argv", words)
        try:
            entry()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
    else:
        module = {"verify-attn": "verify_attn.cli", "pytest": "pytest"}[words[0]]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        more = ["-p", "no:cacheprovider"] if module == "pytest" else []
        code = subprocess.run(
            [sys.executable, "-m", module, *more, *words[1:]], check=False,
            env=inherited | {"PYTHONPATH": PYTHONPATH},
        ).returncode  # fmt: skip
    said = "".join(capfd.readouterr())
    where = f"{command.page}:{command.line}: {text}\n{said}"
    assert code == rule.code, where
    for words_of_it in rule.says:
        assert words_of_it in said, where


@pytest.mark.timing
def test_the_example_server_says_how_to_sweep_it(tmp_path):
    shown = next(c for c in commands("docs/tutorial.md") if "--json slow.json" in c.text)
    with subprocess.Popen(
        [sys.executable, str(ROOT / "examples/collapsing_server.py")], cwd=tmp_path,
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        words = shlex.split(process.stdout.readline())
        process.send_signal(signal.SIGINT)
    assert words[4:] == shlex.split(shown.text)[4:-2]


@needs_none
@pytest.mark.timing
def test_serve_and_its_curl(tmp_path):
    curl = next(c.text for c in commands("docs/serve.md") if c.text.startswith("curl "))
    with subprocess.Popen(
        [sys.executable, "-m", "verify_attn.cli", "serve", "--port", "0"], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        ready = next((line for line in process.stdout if line.startswith("ready")), "it ended")
        text = ADDRESS.sub(ready.split()[-1], curl).replace("100,", "10,")
        done = subprocess.run(
            ["bash", "-c", f"{text} --silent --noproxy '*'"], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        process.terminate()
    assert '"finish_reason":"length"' in done.stdout.replace(" ", ""), (ready, done)


def test_the_workflow_is_where_it_is_copied_from(tmp_path):
    text = next(c.text for c in commands("ci/README.md") if c.text.startswith("mkdir"))
    (tmp_path / "ci").symlink_to(ROOT / "ci")
    subprocess.run(["bash", "-c", text], cwd=tmp_path, check=True)
    copied = tmp_path / ".github/workflows/gpu.yml"
    assert copied.read_text() == (ROOT / "ci/gpu.yml").read_text()
