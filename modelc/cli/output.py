"""What the verbs share: JSON or tables on stdout, progress on stderr, options that are read the same everywhere."""

from __future__ import annotations

import json
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from modelc.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])

WIDTH = 160  # of tables that go into a file or a pipe

out = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
err = Console(stderr=True, highlight=False)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")(
        function
    )


def print_json(data: Mapping[str, Any] | list[Any]) -> None:
    click.echo(json.dumps(data, indent=1))


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name; nothing in it is executed."""
    try:
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise InputError(f"{path} holds one array without a name; expected an .npz file")
            return {name: file[name] for name in file.files}
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        raise InputError(f"{path} is no .npz file of numbers, or damaged: numpy.savez writes such files") from None


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
