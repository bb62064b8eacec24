"""What modelc works with on this machine, and what to do where it is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distributions
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from modelc import DISTRIBUTION, __version__
from modelc.errors import ModelcError, extra
from modelc.package import emulator, find_toolchain
from modelc.package.toolchain import MACHINES, native_machine
from modelc.scratch import is_private, user_cache

EXTRAS = {  # what is imported, what it is for, the extra that brings it
    "xgboost": ("the learned cost of tune", "tune"),
    "distributed": ("Dask clusters", "cluster"),
    "ziglang": ("cross compiling without Debian's compilers", "cross"),
    "openvino": ("bench --against openvino", "bench"),
    "vl_convert": ("modelc report", "report"),
}
ENGINES = ("onnxruntime", "apache-tvm", "onnx", "numpy")
LEAST_FREE = 1 << 30  # bytes for temporary files


@dataclass(frozen=True)
class Finding:
    """`needed`: to compile for this machine. `remedy` is the command that brings what is not `present`."""

    what: str
    present: bool
    said: str
    remedy: str = ""
    needed: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def doctor() -> tuple[Finding, ...]:
    """Looks at what modelc works with on this machine: compilers, emulators, engines, folders.

    Returns:
        A Finding for each, what is needed first: whether it is `present`, and the `remedy` that brings it.

    Example:
        >>> [finding.what for finding in modelc.doctor() if finding.needed and not finding.present]
        []
    """
    return (*_engines(), *_namesakes(), *_compilers(), *_emulators(), *_extras(), *_folders(), *_permissions())


def _engines() -> Iterator[Finding]:
    yield Finding("modelc", True, f"{__version__}, Python {sys.version.split()[0]}", needed=True)
    for name in ENGINES:
        try:
            yield Finding(name, True, installed_version(name), needed=True)
        except PackageNotFoundError:
            yield Finding(name, False, "is not installed", f"pip install {DISTRIBUTION}", True)


def _namesakes() -> Iterator[Finding]:
    """Whether other distributions have modules in a folder `modelc` where Python looks for modules."""
    others = [
        f"{distribution.metadata['Name']} {distribution.version}"
        for distribution in distributions()
        if distribution.metadata["Name"] != DISTRIBUTION
        and re.search(r"^modelc/\w+\.py,", distribution.read_text("RECORD") or "", re.MULTILINE)
    ]
    if others:
        names = " ".join(dict.fromkeys(other.split()[0] for other in others))
        said = f"{', '.join(others)} has modules there, and each replaces files of the other"
        yield Finding(
            "import name modelc", False, said, f"pip uninstall {names}, then install {DISTRIBUTION} again", True
        )
    else:
        yield Finding("import name modelc", True, "of no other distribution", needed=True)


def _compilers() -> Iterator[Finding]:
    native = native_machine()
    for machine in sorted(MACHINES, key=lambda machine: machine != native):
        needed = machine == native
        try:
            command = find_toolchain(machine.gnu_triple).command
            yield Finding(f"compiler for {machine.name}", True, " ".join(command), needed=needed)
        except ModelcError:
            remedy = "apt install gcc" if needed else f"apt install {machine.debian_gcc}, or {extra('cross')}"
            yield Finding(f"compiler for {machine.name}", False, "packages for it cannot be linked", remedy, needed)


def _emulators() -> Iterator[Finding]:
    for machine in MACHINES:
        if machine == native_machine():
            continue
        try:
            command = emulator(machine.gnu_triple, ())
            yield Finding(f"emulator of {machine.name}", True, " ".join(command))
        except ModelcError:
            remedy = f"apt install qemu-user-static {machine.debian_libc}"
            yield Finding(f"emulator of {machine.name}", False, "packages for it cannot be verified here", remedy)


def _extras() -> Iterator[Finding]:
    for module, (use, name) in EXTRAS.items():
        present = importlib.util.find_spec(module) is not None
        yield Finding(module, present, use, "" if present else extra(name))


def _folders() -> Iterator[Finding]:
    cache = user_cache()
    present = _writable(cache) and (not cache.is_dir() or is_private(cache))
    remedy = "set MODELC_CACHE to a folder of your own, in which nobody else can write"
    yield Finding("cache folder", present, str(cache), "" if present else remedy)
    temporary = Path(tempfile.gettempdir())
    free = shutil.disk_usage(temporary).free if temporary.is_dir() else 0
    enough = _writable(temporary) and free >= LEAST_FREE
    said = f"{temporary}, {free / 1e9:.1f} GB free"
    yield Finding("temporary files", enough, said, "" if enough else "set TMPDIR to a folder with more room", True)


def _permissions() -> Iterator[Finding]:
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("processors", True, f"{processors} may be used")
    ssh = shutil.which("ssh")
    remedy = "" if ssh else "apt install openssh-client"
    yield Finding("ssh", ssh is not None, ssh or "boards cannot be measured on", remedy)


def _writable(folder: Path) -> bool:
    """Whether files can be made in it, or it can be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
