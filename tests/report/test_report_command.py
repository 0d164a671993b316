"""`verify-attn report`: what it takes, where it writes, what it refuses."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("jinja2")

from tests.report import records
from verify_attn.record import write_record
from verify_attn.report.folder import FolderError
from verify_attn.report_command import default_out, read_inputs, run_report


@pytest.fixture
def kept(tmp_path):
    """A run's folder with a sweep and a check in it."""
    folder = tmp_path / "run"
    folder.mkdir()
    run = records.run_record()
    write_record(folder / "run.json", run)
    for name, made in (
        ("sweep", records.real("cpu/burst_prose.json")), ("check", records.failing_check()),
    ):  # fmt: skip
        case = next(c for c in run["cases"] if c["id"] == name)
        made |= {"command": case["parameters"]["command"], "environment": run["environment"]}
        write_record(folder / f"{name}.json", made)
    return folder


def test_a_folder_gets_its_page(kept, capsys):
    assert run_report([kept], out=None, against=None) == 0
    told = capsys.readouterr().out
    assert "FAIL: examples.sibling_leak:verify is wrong" in told
    assert f"report: {kept / 'report.html'} (1.3 MB)" in told
    assert "examples.sibling_leak:verify" in (kept / "report.html").read_text()


def test_a_record_alone_and_with_others(kept, tmp_path):
    other = tmp_path / "defragmentation.json"
    other.write_text(json.dumps(records.real("h200/defragmentation.json")))
    out = tmp_path / "out.html"
    paths = [kept / "sweep.json", kept / "check.json", other]
    assert run_report(paths, out=out, against=kept / "sweep.json") == 0
    text = out.read_text()
    assert "14,806 runs become 1" in text
    assert "saved 2026-11-30 18:33" in text


def test_where_it_goes(kept):
    assert default_out(kept) == kept / "report.html"
    assert default_out(kept / "run.json") == kept / "report.html"
    assert default_out(kept / "sweep.json") == kept / "sweep.html"


@pytest.mark.parametrize("name", ["check.txt", "server.log", "junit.xml", "summary.md"])
def test_what_a_run_left_is_never_overwritten(kept, capsys, name):
    (kept / name).write_text("kept")
    assert run_report([kept], out=kept / name, against=None) == 2
    assert "is one of the run's own files" in capsys.readouterr().err
    assert (kept / name).read_text() == "kept"


def test_a_record_of_another_run_is_not_added_to_one(kept, tmp_path, capsys):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(records.failing_check() | {"command": "verify-attn check torch"}))
    (kept / "check.json").unlink()
    assert run_report([kept, other], out=None, against=None) == 2
    assert "is not of the run in" in capsys.readouterr().err


@pytest.mark.parametrize("given", [".", "check.json"])
def test_what_is_drawn_behind_is_a_sweeps_record(kept, capsys, given):
    assert run_report([kept], out=None, against=kept / given) == 2
    assert "is no record of a sweep" in capsys.readouterr().err
    assert run_report([kept], out=None, against=kept / "sweep.json") == 0


def test_two_records_of_one_step_are_refused(kept, tmp_path):
    again = tmp_path / "again.json"
    again.write_bytes((kept / "sweep.json").read_bytes())
    with pytest.raises(FolderError, match="both have a record of sweep; a report shows one"):
        read_inputs([kept, again])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "neither the folder of a run nor a record"),
        ('{"schema_version": 1, "cases": [', "is no record"),
        ('{"schema_version": 0, "cases": []}', "has schema_version 0; this version reads 1"),
        ('{"schema_version": 1, "cases": [{"status": "fine"}]}', "no list of cases"),
        ('{"schema_version": 1, "command": "python x.py", "cases": []}', "has no report"),
    ],
)
def test_what_is_no_record_is_bad_usage(tmp_path, capsys, text, said):
    path = tmp_path / "some.json"
    if text is not None:
        path.write_text(text)
    assert run_report([path], out=tmp_path / "out.html", against=None) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize("given", [".", "run.json", "sweep.json", "check.json"])
def test_a_record_is_never_overwritten(kept, capsys, given):
    before = (kept / "sweep.json").read_bytes()
    assert run_report([kept / given], out=kept / "sweep.json", against=None) == 2
    assert "is one of the run's own files" in capsys.readouterr().err
    assert (kept / "sweep.json").read_bytes() == before


def test_a_place_that_cannot_be_written_is_told(kept, capsys):
    out = kept / "sweep.json" / "out.html"
    assert run_report([kept], out=out, against=None) == 2
    assert "no record can be written to" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(kept, capsys, monkeypatch):
    monkeypatch.setattr("verify_attn.report_command.find_spec", lambda name: None)
    assert run_report([kept], out=None, against=None) == 2
    assert "pip install 'verify-attn[report]'" in capsys.readouterr().err


def test_its_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['verify-attn', 'report', '--help']\n"
        "from verify_attn.cli import main\n"
        "main(standalone_mode=False)\n"
        "heavy = {'torch', 'triton', 'plotly', 'jinja2', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "FOLDER_OR_RECORD" in done.stdout
