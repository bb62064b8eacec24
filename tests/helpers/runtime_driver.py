"""A program of the runtime's own sources and hand-written kernels, to be made with a sanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tiny_package import KERNELS, NATIVE_TRIPLE, spec_of

from modelc.package import SCHEMA_VERSION, find_toolchain, read_package
from modelc.package.glue import plan_source
from modelc.package.header import header_text
from modelc.package.sources import HOSTED, RUNTIME


def build_driver(source: Path, folder: Path, package: Path, *flags: str) -> Path:
    """The test driver `source` with the runtime's sources and the fake kernels, all compiled with `flags`."""
    manifest = read_package(package).manifest
    plan = plan_source(spec_of(), manifest.build_id, SCHEMA_VERSION, manifest.files["params.bin"].sha256)
    (folder / "model_plan.c").write_text(plan)
    (folder / "tiny.h").write_text(header_text(spec_of().form))
    (folder / "kernels.c").write_text(KERNELS)
    sources = [*(str(RUNTIME / name) for name in HOSTED), "model_plan.c", "kernels.c", str(source)]
    warnings = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
    options = ["-std=c11", "-O1", "-g", *warnings, *flags, "-I", str(RUNTIME), "-I", str(folder), "-pthread"]
    find_toolchain(NATIVE_TRIPLE).compile([*options, *sources, "-lm", "-o", "driver"], folder)
    return folder / "driver"


def skip_without_flag(folder: Path, flag: str) -> None:
    (folder / "probe.c").write_text("int main(void) { return 0; }\n")
    command = [*find_toolchain(NATIVE_TRIPLE).command, flag, "probe.c", "-o", "probe"]
    if subprocess.run(command, cwd=folder, capture_output=True).returncode:
        pytest.skip(f"this C compiler has no {flag}")
    if subprocess.run([folder / "probe"], capture_output=True).returncode:
        pytest.skip(f"programs made with {flag} do not run here")
