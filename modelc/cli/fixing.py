"""The flags that fix a model's inputs before it is compiled: --shape, --dim, --constant; what becomes of them in a run:
--state, --bound, --pad-dim, --pad-value; and --inputs, data to verify with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
MOST_DIMENSIONS = 32
MOST_NUMBERS = 1 << 12  # of one --dim or --constant
_SIZE = re.compile(r"0|[1-9][0-9]{0,9}")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_REAL = re.compile(r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?|[+-]?inf|nan")


def fixing_options(function: F) -> F:
    """--shape, --dim and --constant, as texts: what `fixed` takes."""
    return _repeated(
        function,
        ("--constant", "NAME=VALUE|FILE.npy", "Makes an input a constant: 16000, true, 1,2,3, or an array in a file."),
        ("--dim", "NAME=N|M...", "Fixes a free dimension by its name, everywhere. Several numbers: a variant each."),
        (
            "--shape",
            "NAME=1,3,224,224",
            "Fixes an input's shape. A name given again begins another set of shapes, which makes another variant.",
        ),
    )


def running_options(function: F) -> F:
    """Those of `kept_options`, --pad-dim, --pad-value and --inputs, as texts and a path: what `running` takes."""
    data = "Compare with ONNX Runtime on these; their shapes hold where neither --shape nor --dim is given."
    return _repeated(
        kept_options(data_option(data)(function)),
        ("--pad-value", "INPUT=VALUE", "What an input is filled up with in place of zeros."),
        (
            "--pad-dim",
            "NAME",
            "Inputs may be shorter along this dimension: filled up to the smallest variant, and outputs cut back.",
        ),
    )


def kept_options(function: F) -> F:
    """--state and --bound, as texts: what `kept` takes."""
    return _repeated(
        function,
        (
            "--bound",
            "NAME=N",
            "The most that a value of the model can be of which a size is made, where that depends on data: a run in "
            "which it is more ends with an error.",
        ),
        (
            "--state",
            "INPUT=OUTPUT",
            "The package keeps this input from run to run, from zeros on: after a run it is this output.",
        ),
    )


def data_option(says: str) -> Callable[[F], F]:
    """--inputs, as a path: what `given_data` takes."""
    return click.option("--inputs", metavar="F.npz", type=click.Path(path_type=Path), help=says)


def _repeated(function: F, *options: tuple[str, str, str]) -> F:
    """Flags that may be given again, each with what it takes and what it does; --pad-dim becomes `pad_dims`."""
    for flag, metavar, says in options:
        name = f"{flag[2:].replace('-', '_')}s"
        function = click.option(flag, name, metavar=metavar, multiple=True, help=says)(function)
    return function


def fixed(shapes: tuple[str, ...], dims: tuple[str, ...], constants: tuple[str, ...]) -> dict[str, Any]:
    """What --shape, --dim and --constant say, as modelc's functions take it."""
    return {"shapes": tuple(shape_sets(shapes)), "dims": dim_sizes(dims), "constants": constant_values(constants)}


def running(
    states: tuple[str, ...],
    pad_dims: tuple[str, ...],
    pad_values: tuple[str, ...],
    bounds: tuple[str, ...],
    inputs: Path | None,
    *models: Path,
) -> dict[str, Any]:
    """What --state, --pad-dim, --pad-value, --bound and --inputs say, likewise."""
    padded = {"pad_dims": pad_dims, "pad_values": fill_values(pad_values)}
    return kept(states, bounds) | padded | {"inputs": given_data(inputs, *models)}


def kept(states: tuple[str, ...], bounds: tuple[str, ...]) -> dict[str, Any]:
    """What --state and --bound say, likewise."""
    return {"states": state_names(states), "bounds": size_bounds(bounds)}


def given_data(inputs: Path | None, *takers: Path) -> Mapping[str, NDArray[Any]] | None:
    """What --inputs says, for models and packages that take it."""
    from modelc.compile.given import read_given

    return None if inputs is None else read_given(inputs, takers)


def shape_sets(given: tuple[str, ...]) -> list[dict[str, tuple[int, ...]]]:
    """NAME=1,3,224,224 for each input; a name that comes again begins the next set."""
    sets: list[dict[str, tuple[int, ...]]] = []
    for text in given:
        name, _, listed = text.rpartition("=")
        dims = listed.split(",") if listed else []
        numbers = [int(d) if _SIZE.fullmatch(d) else -1 for d in dims]
        if not name or len(dims) > MOST_DIMENSIONS or not all(0 <= n < 1 << 31 for n in numbers):
            raise click.BadParameter(
                f"{text[:200]!r}: expected NAME=1,3,224,224, at most {MOST_DIMENSIONS} whole numbers below 2^31",
                param_hint="--shape",
            )
        if not sets or name in sets[-1]:
            sets.append({})
        sets[-1][name] = tuple(numbers)
    return sets


def dim_sizes(given: tuple[str, ...]) -> Mapping[str, tuple[int, ...]]:
    """NAME=16 or NAME=16|32 for each dimension."""
    sizes: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, _, listed = text.rpartition("=")
        numbers = [int(n) if _SIZE.fullmatch(n) else -1 for n in listed.split("|")[: MOST_NUMBERS + 1]]
        if not name or name in sizes or len(numbers) > MOST_NUMBERS or not all(0 <= n < 1 << 31 for n in numbers):
            raise click.BadParameter(
                f"{text[:200]!r}: expected NAME=16 once for each name, or NAME=16|32 for several variants, whole "
                "numbers below 2^31",
                param_hint="--dim",
            )
        sizes[name] = tuple(dict.fromkeys(numbers))
    return sizes


def constant_values(given: tuple[str, ...]) -> Mapping[str, Any]:
    """NAME=VALUE for each input: a number, true, false, several of them with commas, or the path of a .npy file."""
    constants: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if not name or not value or name in constants:
            raise click.BadParameter(
                f"{text[:200]!r}: expected NAME=VALUE once for each input", param_hint="--constant"
            )
        parts = value.split(",")
        if value.endswith(".npy"):
            constants[name] = value
        elif len(parts) > MOST_NUMBERS or not all(map(_is_number, parts)):
            raise click.BadParameter(
                f"{text[:200]!r}: expected a number, true, false, several with commas (at most {MOST_NUMBERS}), or a "
                "file .npy",
                param_hint="--constant",
            )
        else:
            numbers = [_number(part) for part in parts]
            constants[name] = numbers[0] if len(numbers) == 1 else numbers
    return constants


def state_names(given: tuple[str, ...]) -> Mapping[str, str]:
    """INPUT=OUTPUT for each state."""
    outputs: dict[str, str] = {}
    for text in given:
        name, _, output = text.partition("=")
        if not name or not output or name in outputs:
            raise click.BadParameter(f"{text[:200]!r}: expected INPUT=OUTPUT once for each input", param_hint="--state")
        outputs[name] = output
    return outputs


def fill_values(given: tuple[str, ...]) -> Mapping[str, int | float]:
    """INPUT=NUMBER for each input that is filled up otherwise than with zeros."""
    fills: dict[str, int | float] = {}
    for text in given:
        name, _, value = text.rpartition("=")
        if not name or name in fills or not _is_number(value):
            raise click.BadParameter(
                f"{text[:200]!r}: expected INPUT=VALUE once for each input, a number", param_hint="--pad-value"
            )
        fills[name] = _number(value)
    return fills


def size_bounds(given: tuple[str, ...]) -> Mapping[str, int]:
    """NAME=N for each value that sizes are made of."""
    most_by_name: dict[str, int] = {}
    for text in given:
        name, _, most = text.rpartition("=")
        if not name or name in most_by_name or not _SIZE.fullmatch(most) or not 0 < int(most) < 1 << 31:
            raise click.BadParameter(
                f"{text[:200]!r}: expected NAME=N once for each value, a whole number from 1", param_hint="--bound"
            )
        most_by_name[name] = int(most)
    return most_by_name


def _is_number(text: str) -> bool:
    return text in ("true", "false") or bool(_WHOLE.fullmatch(text) or _REAL.fullmatch(text))


def _number(text: str) -> bool | int | float:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if _WHOLE.fullmatch(text) else float(text)
