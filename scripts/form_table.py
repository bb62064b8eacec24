"""Which forms of a package there are for which systems: builds a small model in every form for every system, runs what
something here runs, and writes the table into docs/forms.md.

    python scripts/form_table.py [--write] [TRIPLE...]

A program for Windows runs under Wine where `wine` is there."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from paths import ROOT
from tiny_package import check_outputs, inputs_of, object_for, plan_of, spec_of

from modelc.errors import ModelcError
from modelc.package import Form, find_toolchain, read_package, run_emulated, write_package
from modelc.target.system import LINUX, MACOS, WASI, WINDOWS

TRIPLES = (
    "x86_64-linux-gnu",
    "aarch64-linux-gnu",
    "armv7l-linux-gnueabihf",
    "riscv64-linux-gnu",
    "x86_64-linux-musl",
    "aarch64-linux-musl",
    "armv7l-linux-musleabihf",
    "wasm32-wasi",
    "x86_64-windows-gnu",
    "aarch64-linux-android",
    "x86_64-macos",
    "aarch64-macos",
)
FORMS = {"shared": ("so",), "static": ("a",), "object": ("o",), "free-standing": ("a",)}
BEGIN, END = "<!-- table of forms: scripts/form_table.py --write -->", "<!-- end of the table -->"
SECONDS = 900


def cell(triple: str, column: str, folder: Path) -> str:
    """What becomes of a form."""
    try:
        form = Form.of("net", "face", FORMS[column], freestanding=column == "free-standing", triple=triple)
    except ModelcError as error:
        return str(error).rpartition(": ")[2]
    if form.on is not LINUX and column == "free-standing":
        return "as static"
    try:
        plans = tuple(plan_of(rows, "face_") for rows in (40, 7))
        spec = spec_of(triple, form=form, variants=plans, objects={"b": object_for(triple, "face_")})
        path = write_package(spec, folder / column).path
    except ModelcError as error:
        return f"not built: {str(error).splitlines()[0]}"
    code = path / form.code
    said = f"{code.name}, {code.stat().st_size / 1e3:.0f} kB: "
    if form.on is WINDOWS:
        return said + under_wine(path, form)
    if form.on is MACOS:
        return f"{said}built, not run (programs for macOS are not run on this machine)"
    try:
        check_outputs(run_emulated(path, inputs_of(7), variant=1).outputs, inputs_of(7))
    except ModelcError as error:
        sentence = str(error).splitlines()[0].replace(str(path), "it").split(": add")[0]
        if form.on is LINUX and column == "shared":
            sentence = "is loaded by programs of musl alone"
        elif form.on is WASI:
            sentence = "to be linked"
        return f"{said}built, not run ({sentence})"
    assert read_package(path, check=True)
    return f"{said}runs"


def under_wine(path: Path, form: Form) -> str:
    """Builds the package's example with its library and runs it."""
    wine = shutil.which("wine")
    if wine is None:
        return "built, not run (no Wine)"
    try:
        library = form.beside[0] if form.beside else form.archive
        find_toolchain("x86_64-windows-gnu").compile(["-O2", "-s", "example.c", library, "-o", "example.exe"], path)
    except ModelcError as error:
        return f"built, not run ({str(error).splitlines()[-1]})"
    env = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(path.parent / "wine")}
    done = subprocess.run([wine, "./example.exe"], cwd=path, env=env, capture_output=True, text=True, timeout=SECONDS)
    return "runs under Wine" if "y[0] = 0" in done.stdout else f"built, fails under Wine ({done.stderr.strip()[-80:]})"


def table(triples: Sequence[str]) -> str:
    lines = [f"| triple | {' | '.join(FORMS)} |", "| --- " * (len(FORMS) + 1) + "|"]
    for triple in triples:
        with tempfile.TemporaryDirectory() as name:
            cells = [cell(triple, column, Path(name)) for column in FORMS]
        lines.append(f"| `{triple}` | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("triples", nargs="*", default=TRIPLES, help="of these alone")
    parser.add_argument("--write", action="store_true", help="put the table into docs/forms.md")
    arguments = parser.parse_args()
    text = table(arguments.triples)
    if arguments.write:
        page = ROOT / "docs/forms.md"
        between = f"{re.escape(BEGIN)}.*{re.escape(END)}"
        written = re.sub(between, lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page.read_text(), flags=re.DOTALL)
        page.write_text(written)


if __name__ == "__main__":
    main()
