"""A user's kernels in a directory of their own, and the command run there."""

import os
import subprocess
import sys

import pytest

COMMAND = (sys.executable, "-m", "verify_attn.cli")
# A relative entry would mean the user's directory there, not the one that the tests run in.
PYTHONPATH = os.pathsep.join(
    os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry
)
USER = """
import os, signal, sys, time
import torch
from pathlib import Path
from verify_attn.kernels.base import declare
from verify_attn.kernels.torch_kernel import torch_verify as right

def raises(batch, out, lse):
    raise ValueError("takes [64] heads \\x1b[31m \\udc80")

def hangs(batch, out, lse):
    time.sleep(600)

def crashes(batch, out, lse):
    os.kill(os.getpid(), signal.SIGSEGV)

def resizes(batch, out, lse):
    right(batch, out, lse)
    out.resize_(out.shape[0], out.shape[1] * out.shape[2])

def other_type(batch, out, lse):
    right(batch, out, lse)
    out.data = out.double()

def returns(batch, out, lse):
    return torch.zeros_like(out), torch.zeros_like(lse)

@declare(page_sizes=(3,))
def refuses(batch, out, lse):
    right(batch, out, lse)

def slow(batch, out, lse):
    with open("calls", "a") as file:
        file.write("x")
    time.sleep(float(os.environ.get("SLOW", "0")))
    right(batch, out, lse)

def one_argument(batch):
    pass

class NeedsArguments:
    def __init__(self, heads): pass

def __getattr__(name):
    if name == "lazy":
        raise ImportError("lazily")
    raise AttributeError(name)

three = 3
"""
MODULES = {
    "mine": USER,
    "broken": "def f():\n    raise ValueError('at [/import]')\nf()\n",
    "unparsable": "def f(:\n",
    "needs": "import no_such_package\n",
    "random": "raise RuntimeError('shadows the standard library')\n",
}
ONE = '{"requests":[[3,"[-1,0,0]"]]}'


@pytest.fixture
def user(tmp_path):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def verify_attn(*args, cwd, **env):
    # -P as in the console script, whose directory is not searched for modules
    command = [sys.executable, "-P", *COMMAND[1:], *args]
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": PYTHONPATH} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def check(*args, cwd, examples=2, **env):
    drawn = [] if "--case" in args else ["--examples", str(examples)]
    return verify_attn("check", *args, *drawn, "--workers", "1", cwd=cwd, **env)
