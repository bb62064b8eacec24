"""modelc run"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import click
import numpy as np
from numpy.typing import NDArray

from modelc.cli.arrays import read_npz
from modelc.cli.output import json_option, print_json, say
from modelc.errors import InputError, PackageError
from modelc.scratch import beside


@click.command()
@click.argument("package", metavar="PKG", type=click.Path(path_type=Path))
@click.option("--inputs", metavar="F.npz", required=True, type=click.Path(path_type=Path), help="One array per input.")
@click.option("--outputs", metavar="G.npz", required=True, type=click.Path(path_type=Path), help="Where to write.")
@click.option("--no-check", is_flag=True, help="Do not compare the files' checksums, which reads all parameters.")
@json_option
def run(package: Path, inputs: Path, outputs: Path, no_check: bool, as_json: bool) -> None:
    """Runs a package on the arrays of an .npz file. Loading a package executes the library in it."""
    from modelc import runtime

    feed = read_npz(inputs)
    try:
        with runtime.load(package, check=not no_check) as model:
            results = model.run(feed)
    except runtime.ModelError as error:
        raise PackageError(str(error)) from None
    write_npz(outputs, results)
    described = {name: {"dtype": a.dtype.name, "shape": list(a.shape)} for name, a in results.items()}
    if as_json:
        print_json({"outputs": described})
        return
    for name, one in described.items():
        say(f"{name}: {one['dtype']}{one['shape']}")


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes an .npz file with arrays of any names; what is there is replaced when all of it has been written."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced
            with path.open("wb") as file:
                _write_members(file, arrays)
            return
        place = path.resolve()  # a link stays, and leads to the new file
        with beside(place, folder=False) as made:
            with made.open("wb") as file:
                _write_members(file, arrays)
            if place.exists():
                made.chmod(place.stat().st_mode & 0o777)
            os.replace(made, place)
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a null character in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be written: {reason}") from None


def _write_members(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """As numpy.savez does, which takes some names for its own parameters."""
    from modelc.runtime import as_bits

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, as_bits(np.asanyarray(array)), allow_pickle=False)
