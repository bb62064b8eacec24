"""The version of the code that makes a kernel of a Task and a Candidate, and times it: records of another are of other
kernels."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path

from modelc import __version__
from modelc.target.section import targets_folder

HERE = Path(__file__).resolve().parents[1]
DECIDING = (  # what a kernel depends on, and how it is timed; not what proposes Candidates, or chooses Tasks
    "ir",
    "target",
    "space/analysis",
    "space/check.py",
    "space/nest",
    "space/rules",
    "space/sketches/follow.py",  # of which the Nests' prefetching asks
    "space/sketches/prepare.py",
    "codegen",
    "runtime",
    "package/link.py",
    "package/toolchain.py",
    "measure",
)
SUFFIXES = (".py", ".c", ".h", ".yaml")


@cache
def code_version() -> str:
    """modelc's version, and a digest of the sources that decide, of the shipped intrinsics and of TVM's version."""
    digest = hashlib.sha256(f"apache-tvm {installed_version('apache-tvm')}".encode())
    for path in deciding_files():
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


def deciding_files() -> list[Path]:
    """The files that the version depends on, in one order everywhere."""
    places = [*(HERE / name for name in DECIDING), targets_folder() / "intrinsics"]
    found = [path for place in places for path in ([place] if place.is_file() else sorted(place.rglob("*")))]
    return [path for path in found if path.suffix in SUFFIXES]
