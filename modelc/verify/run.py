"""A package run once: here, or under an emulator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.errors import InputError
from modelc.package import emulated, read_package, run_package
from modelc.runtime import load
from modelc.verify.check import given_or_drawn


def run(
    package: str | Path,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    threads: int | None = None,
    check: bool = True,
) -> dict[str, NDArray[Any]]:
    """Runs a package once; under an emulator where it is for another machine. modelc.load is for more runs than one.

    Args:
        package: Loading it executes the library in it.
        inputs: Arrays by name, in the variant that takes them. Default: drawn, in the first variant; of a package for
            any size, for the first of the sizes that matter.
        threads: On how many threads. Default: the processors that may be used.
        check: Whether the checksums of all files are compared, which reads all parameters.

    Returns:
        The outputs by name.

    Raises:
        ModelError: The package cannot be loaded, or inputs do not fit.
        InputError: Inputs do not fit, or `threads` is given for a package that is emulated.
        PackageError: The package is damaged.
        ToolchainError: There is no emulator for the package.

    Example:
        >>> x = np.ones((1, 3, 20, 24), np.float32)
        >>> modelc.run("net.modelc", {"x": x})["y"].shape
        (1, 10)
    """
    read = read_package(package)
    feed = given_or_drawn(read, None, None) if inputs is None else inputs
    if not emulated(read):
        with load(read.path, threads, check) as model:
            return model.run(feed)
    if threads is not None:
        raise InputError(f"{package} runs under an emulator, on one thread: leave out threads")
    return run_package(read.path, feed, check)
