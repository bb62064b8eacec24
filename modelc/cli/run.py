"""modelc run"""

from __future__ import annotations

from pathlib import Path

import click

from modelc.cli.output import json_option, print_json, say
from modelc.cli.places import package_argument


@click.command()
@package_argument("modelc run PKG.modelc --inputs F.npz --outputs G.npz")
@click.option("--inputs", metavar="F.npz", required=True, type=click.Path(path_type=Path), help="One array per input.")
@click.option("--outputs", metavar="G.npz", required=True, type=click.Path(path_type=Path), help="Where to write.")
@click.option("--no-check", is_flag=True, help="Do not compare the files' checksums, which reads all parameters.")
@json_option
def run(package: Path, inputs: Path, outputs: Path, no_check: bool, as_json: bool) -> None:
    """Runs a package on the arrays of an .npz file, under an emulator where it is for another machine. Loading a
    package executes the library in it."""
    from modelc.compile.arrays import read_npz, write_npz
    from modelc.package import run_package

    results = run_package(package, read_npz(inputs), check=not no_check)
    write_npz(outputs, results)
    described = {name: {"dtype": a.dtype.name, "shape": list(a.shape)} for name, a in results.items()}
    if as_json:
        print_json({"outputs": described})
        return
    for name, array in described.items():
        say(f"{name}: {array['dtype']}{array['shape']}")
