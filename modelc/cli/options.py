"""Arguments and flags of the command line: models and packages, numbers, and the rows of a request."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from modelc.compile.options import Option, pairs, size

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
MANIFEST = "manifest.json"
ARCHIVE = ".zip"
Given = Path | tuple[Path, ...] | None


def request_options(request: type, *names: str) -> Callable[[F], F]:
    """The flags of a request's fields, or of those of these names, which a command takes as `**options` for `asked`."""
    rows = [row for row in fields(request) if not names or row.name in names]

    def decorated(function: F) -> F:
        for row in reversed(rows):
            facts: Option | None = row.metadata.get("option")
            if facts is not None and (facts.help or facts.metavar):
                function = _flag(row, facts)(function)
        return function

    return decorated


def asked(options: Mapping[str, Any], *takers: Path) -> dict[str, Any]:
    """The fields that flags say, for a request of models or packages: `inputs` are read. Raises click.UsageError."""
    values = {name: value for name, value in options.items() if value is not None}
    if "inputs" in values:
        values["inputs"] = given_data(values["inputs"], *takers)
    if values.pop("no_database", False):
        if "database" in values:
            raise click.UsageError("--database and --no-database were both given")
        values["database"] = False
    return values


def given_data(inputs: Path | None, *takers: Path) -> Mapping[str, NDArray[Any]] | None:
    """What --inputs says, for models and packages that take it."""
    from modelc.compile.given import read_given

    return None if inputs is None else read_given(inputs, takers)


def sizes_option() -> Callable[[F], F]:
    """--dim, as numbers by name: at what sizes a package for any is run."""

    def read(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> Mapping[str, int] | None:
        if not given:
            return None
        try:
            return pairs("NAME=16 once for each name, a whole number below 2^31", size)(given)
        except ValueError as error:
            raise click.BadParameter(str(error), context, param_hint="--dim") from None

    says = "Of a package for any size: draw inputs of this one (default: the first that matters)."
    return click.option("--dim", "dims", metavar="NAME=N", multiple=True, callback=read, help=says)


def data_option(says: str) -> Callable[[F], F]:
    """--inputs, as a path: what `given_data` takes."""
    return click.option("--inputs", metavar="F.npz", type=PATH, help=says)


def _flag(row: Field[Any], facts: Option) -> Callable[[F], F]:
    negated = row.default is True and facts.kind is bool
    name = row.name.removesuffix("s") if facts.several and row.name != "only" else row.name
    flag = facts.flag or f"--{'no-' * negated}{name.replace('_', '-')}"

    def read(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
        if negated:
            return not given
        try:
            return given if given is None or facts.read is None else facts.read(given)
        except ValueError as error:
            raise click.BadParameter(str(error), context, param_hint=flag) from None

    shown = facts.kind is not bool and not isinstance(row.default, bool) and row.default not in (None, "", ())
    option = click.option(
        flag,
        row.name,
        metavar=facts.metavar,
        type=None if facts.kind is bool else _type(facts),
        is_flag=facts.kind is bool,
        multiple=facts.several,
        default=row.default if shown else False if facts.kind is bool else None,
        show_default=shown,
        callback=read,
        envvar=facts.envvar,
        shell_complete=_targets if row.name == "target" else None,
        help=facts.help or None,
    )
    if not facts.off:
        return option
    off = click.option(f"--no-{row.name}", f"no_{row.name}", is_flag=True, help=facts.off)
    return lambda function: option(off(function))


def _type(facts: Option) -> Any:
    """What click takes for the kind of an option's value."""
    if isinstance(facts.kind, range):
        return click.IntRange(facts.kind.start, facts.kind.stop - 1)
    if isinstance(facts.kind, type):
        return PATH if facts.kind is Path else facts.kind
    return click.Choice(facts.kind)


def _targets(context: click.Context, option: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of targets that begin so, and files."""
    from click.shell_completion import CompletionItem

    from modelc.target import list_targets

    files = [CompletionItem(begun, type="file")] * (os.sep in begun)
    return [CompletionItem(name) for name in list_targets() if name.startswith(begun)] or files


class Finite(click.FloatRange):
    """A number within limits. NaN is within none, which FloatRange does not see."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        converted: float = super().convert(value, param, ctx)
        return converted


def package_argument(usage: str) -> Callable[[F], F]:
    """The argument `package`."""

    def check(context: click.Context, parameter: click.Parameter, path: Path) -> Path:
        if path.is_file() and path.suffix != ARCHIVE:
            raise click.BadParameter(f"{path} is a file, and a package is a folder: {usage}", context, parameter)
        return path

    return click.argument("package", metavar="PKG", type=PATH, callback=check)


def model_argument(usage: str) -> Callable[[F], F]:
    """The argument `model`."""
    return click.argument("model", metavar="MODEL.onnx", type=PATH, callback=no_package(usage))


def no_package(usage: str) -> Callable[[click.Context, click.Parameter, Given], Given]:
    """The callback of a parameter that is a model, or several."""

    def check(context: click.Context, parameter: click.Parameter, given: Given) -> Given:
        for path in given if isinstance(given, tuple) else (given,):
            if path is not None and (path / MANIFEST).is_file():
                raise click.BadParameter(f"{path} is a package, and a model is a file: {usage}", context, parameter)
        return given

    return check
