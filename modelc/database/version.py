"""The version of the code that makes a kernel of a Task and a Candidate, and times it: records of another are of other
kernels."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import replace
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path

from modelc import __version__
from modelc.space.rules.derivation import rules
from modelc.space.rules.rule import Rule
from modelc.target import Target
from modelc.target.section import targets_folder

HERE = Path(__file__).resolve().parents[1]
DECIDING = (  # what a kernel depends on, and how it is timed; not what proposes Candidates, or chooses Tasks
    "ir",
    "target",
    "space/analysis",
    "space/check.py",
    "space/nest",
    "space/rules",
    "codegen",
    "ops/tree_walks.py",
    "runtime",
    "package/emulators.py",
    "package/elf.py",
    "package/foreign.py",
    "package/form.py",
    "package/header.py",
    "package/link.py",
    "package/sources.py",
    "package/stubs.py",
    "package/toolchain.py",
    "measure",
)
SUFFIXES = (".py", ".c", ".h", ".yaml")


def code_version(target: Target | None = None) -> str:
    """modelc's version, and a digest of the sources that decide, of the shipped intrinsics and of TVM's version; behind
    a dot, a digest of what the user brings: derivation rules, and the intrinsics of `target`."""
    own = [_source(rule) for name, rule in sorted(rules().items()) if not rule.apply.__module__.startswith("modelc.")]
    if target is not None:
        own += [
            repr(replace(intrinsic, file=None))
            for intrinsic in target.available_intrinsics
            if intrinsic.file is not None
        ]
    return _version() + (f".{hashlib.sha256(chr(0).join(own).encode()).hexdigest()[:8]}" if own else "")


@cache
def _version() -> str:
    digest = hashlib.sha256(f"apache-tvm {installed_version('apache-tvm')}".encode())
    for path in deciding_files():
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


def _source(rule: Rule) -> str:
    """A rule's name and the module that it is from, as far as its source can be had."""
    try:
        return f"{rule.name}\0{Path(inspect.getsourcefile(rule.apply) or '').read_text()}"
    except (OSError, TypeError):
        return f"{rule.name}\0{rule.apply.__module__}"


def deciding_files() -> list[Path]:
    """The files that the version depends on, in one order everywhere."""
    places = [*(HERE / name for name in DECIDING), targets_folder() / "intrinsics"]
    files = [path for place in places for path in ([place] if place.is_file() else sorted(place.rglob("*")))]
    return [path for path in files if path.suffix in SUFFIXES]
