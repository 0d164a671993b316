"""The wheel and the sdist hold what the package needs, and an installed copy works on its own."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from verify_attn import __version__

ROOT = Path(__file__).resolve().parents[2]
# What a wheel without it would still import, and fail at later.
NEEDED = (
    "verify_attn/py.typed", "verify_attn/engine/data/tiny.safetensors",
    "verify_attn/engine/data/block.safetensors", "verify_attn/kernels/triton_split.py",
    "verify_attn/report/html/templates/report.html.j2",
    "verify_attn/report/html/templates/style.css", "verify_attn/report/html/templates/page.js",
)  # fmt: skip
BUILD = "from setuptools import build_meta as b; import sys; print(b.{}(sys.argv[1]))"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist), from a copy: builds write into their tree, and take what earlier ones left.

    By the backend that pyproject.toml names, as installed here: no network.
    """
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    shutil.copytree(
        ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    made = []
    for what in ("build_wheel", "build_sdist"):
        done = subprocess.run(
            [sys.executable, "-c", BUILD.format(what), str(folder)], cwd=tree, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        made.append(folder / done.stdout.splitlines()[-1])
    return made


def source_files():
    """Every file of the package: there is none that may be left out."""
    files = (p for p in (ROOT / "src/verify_attn").rglob("*") if p.is_file())
    return {
        str(p.relative_to(ROOT / "src")) for p in files
        if "__pycache__" not in p.parts and p.suffix != ".pyc"
    }  # fmt: skip


def test_the_wheel_has_every_file_of_the_package_and_no_other(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = {n for n in wheel.namelist() if ".dist-info/" not in n}
        entry_points = wheel.read(f"verify_attn-{__version__}.dist-info/entry_points.txt").decode()
        licences = [n for n in wheel.namelist() if n.endswith("licenses/LICENSE")]
    assert names == source_files()
    assert set(NEEDED) <= names
    assert "verify-attn = verify_attn.cli:entry" in entry_points
    assert "verify_attn_perf = verify_attn.pytest_perf" in entry_points
    assert licences


def test_the_sdist_has_them_too(built):
    with tarfile.open(built[1]) as sdist:
        names = {n.partition("/")[2] for n in sdist.getnames()}
    assert {f"src/{name}" for name in source_files()} <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names


def metadata(path):
    """What the wheel says of itself."""
    with zipfile.ZipFile(path) as wheel:
        return wheel.read(f"verify_attn-{__version__}.dist-info/METADATA").decode()


def test_the_metadata(built):
    text = metadata(built[0])
    assert f"\nVersion: {__version__}\n" in text
    assert "\nRequires-Python: >=3.11\n" in text
    for extra in ("cuda", "perf", "report", "serve", "test"):
        assert f"\nProvides-Extra: {extra}\n" in text
    assert "# verify-attn" in text


def test_an_installed_copy_works(built, tmp_path):
    target = tmp_path / "site"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run(
        [sys.executable, "-m", "pip", *install, "--target", str(target), str(built[0])], check=True
    )
    environment = os.environ | {"PYTHONPATH": str(target)}

    def said(*words):
        return subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
        ).stdout

    where = said(sys.executable, "-c", "import verify_attn; print(verify_attn.__file__)")
    assert where.strip() == str(target / "verify_attn/__init__.py")
    command = str(target / "bin/verify-attn")
    assert "Is tree-verify attention right" in said(command, "--help")
    assert "1,427 tokens, 32 nodes" in said(command, "roofline", "--quick")


def constraints():
    """What constraints.txt allows of each package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    asked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(one.name): one.specifier for one in asked}


def test_constraints_allow_the_triton_that_torch_asks_for():
    """CUDA builds of torch pin one; a build for the CPU asks for none, and gets the newest."""
    allowed = constraints()["triton"]
    assert importlib.metadata.version("triton") in allowed
    for asked in map(Requirement, importlib.metadata.requires("torch") or []):
        if asked.name == "triton":
            assert [v for v in asked.specifier if v.version in allowed]


def test_everything_that_is_asked_for_is_pinned(built):
    asked = re.findall(r"(?m)^Requires-Dist: ([A-Za-z0-9._-]+)", metadata(built[0]))
    exact = {name for name, allowed in constraints().items() if "==" in str(allowed)}
    missing = {canonicalize_name(name) for name in asked} - exact - {"verify-attn", "triton"}
    assert len(asked) > 20
    assert not missing
