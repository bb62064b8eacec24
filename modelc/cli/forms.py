"""The flags that say what a package is made as, and how large it may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

OPTIONS = (
    click.option("--prefix", metavar="NAME", help="Begins the names of the library (default: the model's name)."),
    click.option(
        "--emit", metavar="so,a,o,rust", default="", help="Shared library (default), static one, object, Rust crate."
    ),
    click.option("--embed-params", is_flag=True, help="Put parameters into the library: no file is opened."),
    click.option("--freestanding", is_flag=True, help="Need no C library, threads or files; memory is the caller's."),
    click.option("--libc", metavar="LIBC", default="", help="gnu, gnu.2.N, musl or none (default: the oldest gnu)."),
    click.option(
        "--cc", metavar="COMMAND", default="", help="The C compiler for the target (default: $CC, or what is there)."
    ),
    click.option("--ar", metavar="COMMAND", default="", help="What makes static libraries."),
)


LIMITS = (
    click.option("--max-params", metavar="1.2x|4MB", default="", help="The most that parameters may take."),
    click.option("--max-arena", metavar="BYTES", default="", help="The most that the arena may take."),
    click.option("--max-library", metavar="BYTES", default="", help="The most that the file with the code may take."),
)


def limit_options(command: Decorated) -> Decorated:
    for option in reversed(LIMITS):
        command = option(command)
    return command


def form_options(command: Decorated) -> Decorated:
    for option in reversed(OPTIONS):
        command = option(command)
    return command
