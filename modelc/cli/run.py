"""modelc run"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from modelc.cli.arrays import read_npz
from modelc.cli.output import json_option, print_json, say
from modelc.errors import InputError, PackageError


@click.command()
@click.argument("package", metavar="PKG", type=click.Path(path_type=Path))
@click.option("--inputs", metavar="F.npz", required=True, type=click.Path(path_type=Path), help="One array per input.")
@click.option("--outputs", metavar="G.npz", required=True, type=click.Path(path_type=Path), help="Where to write.")
@json_option
def run(package: Path, inputs: Path, outputs: Path, as_json: bool) -> None:
    """Runs a package on the arrays of an .npz file. Loading a package executes the library in it."""
    from modelc import runtime

    feed = read_npz(inputs)
    try:
        with runtime.load(package) as model:
            results = model.run(feed)
    except runtime.ModelError as error:
        raise PackageError(str(error)) from None
    try:
        with outputs.open("wb") as file:
            np.savez(file, **results)  # type: ignore[arg-type]
    except OSError as error:
        raise InputError(f"{outputs} cannot be written: {error.strerror}") from None
    described = {name: {"dtype": a.dtype.name, "shape": list(a.shape)} for name, a in results.items()}
    if as_json:
        print_json({"outputs": described})
        return
    for name, one in described.items():
        say(f"{name}: {one['dtype']}{one['shape']}")
