"""Models and packages as arguments of a verb. Who gives one in place of the other reads how the verb is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

MANIFEST = "manifest.json"
ARCHIVE = ".zip"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Given = Path | tuple[Path, ...] | None


def package_argument(usage: str) -> Callable[[Decorated], Decorated]:
    """The argument `package`."""

    def check(context: click.Context, parameter: click.Parameter, path: Path) -> Path:
        if path.is_file() and path.suffix != ARCHIVE:
            raise click.BadParameter(f"{path} is a file, and a package is a folder: {usage}", context, parameter)
        return path

    return click.argument("package", metavar="PKG", type=click.Path(path_type=Path), callback=check)


def model_argument(usage: str) -> Callable[[Decorated], Decorated]:
    """The argument `model`."""
    return click.argument("model", metavar="MODEL.onnx", type=click.Path(path_type=Path), callback=no_package(usage))


def no_package(usage: str) -> Callable[[click.Context, click.Parameter, Given], Given]:
    """The callback of a parameter that is a model, or several."""

    def check(context: click.Context, parameter: click.Parameter, given: Given) -> Given:
        for path in given if isinstance(given, tuple) else (given,):
            if path is not None and (path / MANIFEST).is_file():
                raise click.BadParameter(f"{path} is a package, and a model is a file: {usage}", context, parameter)
        return given

    return check
