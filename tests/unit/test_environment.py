"""What this machine is, with scripted GPUs."""

import subprocess
import sys

import pytest

from verify_attn.doctor import _triton
from verify_attn.environment import (
    Gpu,
    _visible,
    environment,
    gpus,
    interpreted,
    summary,
    triton_setting,
    versions,
)
from verify_attn.pytest_plugin import own_device


def gpu(index, name="H200", uuid=None):
    uuid = uuid or f"GPU-{index}{index}{index}a-b"
    return Gpu(index, name, uuid, "575.1", "9.0", 140 << 30, 1980, None, 700.0, None)


FOUR = [gpu(i) for i in range(4)]


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2", [2]),
        ("3, 1", [3, 1]),
        ("", []),
        ("-1", []),
        ("1,-1,2", [1]),
        ("1,9,2", [1]),
        ("nonsense", []),
        ("²", []),
        ("GPU-222", [2]),
        ("GPU-222a-b,0", [2, 0]),
        ("GPU-", []),  # all of them begin so: CUDA takes none
        ("GPU-999,0", []),
    ],
)
def test_cuda_visible_devices(visible, indices):
    assert [g.index for g in _visible(FOUR, visible)] == indices


@pytest.mark.parametrize(
    ("worker", "visible", "count", "device"),
    [
        (0, None, 4, "0"),
        (3, None, 4, "3"),
        (5, None, 4, "1"),
        (0, "3,5", 2, "3"),
        (1, "3,5", 2, "5"),
        (2, "3, 5", 2, "3"),
        (1, "3,,5,", 2, "5"),
        (1, "GPU-a,GPU-b", 2, "GPU-b"),
        (3, "1,9", 1, "1"),  # CUDA does not know 9
        (0, None, 0, None),
        (1, "", 0, None),
        (1, "-1", 0, None),
    ],
)
def test_each_xdist_worker_has_one_device(worker, visible, count, device):
    assert own_device(worker, visible, count) == device


def test_no_two_workers_share_while_there_are_enough():
    assert len({own_device(w, "7,5,3,1", 4) for w in range(4)}) == 4


@pytest.mark.parametrize(
    ("setting", "asks"),
    [("1", True), ("true", True), ("True", True), ("yes", True), ("on", True), ("y", True),
     ("0", False), ("", False), ("false", False), ("2", False), (None, None)],
)  # fmt: skip
def test_triton_interpret_is_read_as_triton_reads_it(monkeypatch, setting, asks):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if setting is not None:
        monkeypatch.setenv("TRITON_INTERPRET", setting)
        triton = pytest.importorskip("triton")
        assert triton.knobs.runtime.interpret is asks
    assert triton_setting() is asks
    assert interpreted(FOUR) is bool(asks)
    assert interpreted([]) is (asks is not False)


def test_summary(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert summary(FOUR) == "4 x H200, driver 575.1; Triton kernels compiled"
    assert summary([gpu(0), gpu(1, "L40")]).startswith("2 x H200, L40, driver")
    assert summary([]).startswith("no GPU; Triton kernels run in its interpreter")
    monkeypatch.setenv("TRITON_INTERPRET", "true")
    assert summary(FOUR).endswith("interpreted")
    assert _triton(FOUR).startswith("interpreter (TRITON_INTERPRET=true)")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "none can run" in summary([])
    assert _triton([]).startswith("cannot run: no GPU")
    assert _triton(FOUR).startswith("compiled")


def test_environment_and_versions():
    found = environment()
    assert found["triton"] in ("interpreter", "compiled")
    assert found["versions"]["torch"] == versions()["torch"] != "not installed"
    assert isinstance(gpus(), list)


def test_reading_it_imports_no_torch():
    code = (
        "import sys, verify_attn, verify_attn.environment as e, verify_attn.pytest_plugin\n"
        "e.environment(); e.summary()\n"
        "sys.exit(', '.join({'torch', 'triton', 'numpy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
