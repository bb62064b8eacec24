"""The library's functions as users call them: what all that modelc/__init__.py lists have in common.

A function says its arguments once: itself, or as the fields of the request that it is asked by.

`progress`, of those that take long, is a function of two texts: the stage, and what that is at ("12 of 46" where it
counts). It is called in the thread that called the function, or in one that it waits for. What it raises ends the call,
which leaves nothing half-made and raises the same. The logger `modelc` is told the same at level INFO, and what is
noteworthy of a result at level WARNING.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from textwrap import fill
from typing import Any, ParamSpec, TypeVar

from modelc.errors import InputError

P = ParamSpec("P")
Asked = TypeVar("Asked")
Result = TypeVar("Result")

Progress = Callable[[str, str], None]
CALLBACKS = ("progress", "watch")
LIMITS: Mapping[str, tuple[int, float]] = {  # of arguments that are whole numbers
    "threads": (1, 1024),
    "run_threads": (1, 256),
    "jobs": (1, 256),
    "seed": (0, (1 << 63) - 1),
    "samples": (1, math.inf),
    "repeat": (1, 1_000_000),
}
LOADER = "modelc.runtime.loader"  # judges its arguments itself: it works without the rest of modelc

logger = logging.getLogger("modelc")
logger.addHandler(logging.NullHandler())


class Cancelled(BaseException):
    """What a user's callback raised, on its way past everything that answers to errors of our own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def asked_by(request: Callable[P, Asked]) -> Callable[[Callable[[Asked], Result]], Callable[P, Result]]:
    """Makes of a function of a request, which is a dataclass, a function of its fields, which say what they are."""

    def decorated(answer: Callable[[Asked], Result]) -> Callable[P, Result]:
        @wraps(answer)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            return answer(request(*args, **kwargs))

        signature = inspect.signature(request)
        _describe(call, signature.replace(return_annotation=inspect.signature(answer).return_annotation))
        said, returns, end = (answer.__doc__ or "").partition("    Returns:\n")
        call.__doc__ = f"{said}    Args:\n{_arguments(request, signature)}\n\n{returns}{end}"
        return call

    return decorated


def _arguments(request: Any, signature: inspect.Signature) -> str:
    """What the fields of a request say of themselves, in the order of its signature."""
    documents = {row.name: row.metadata["option"].doc for row in fields(request)}
    texts = (f"{name}: {documents[name]}" for name in signature.parameters)
    return "\n".join(fill(text, 120, initial_indent=" " * 8, subsequent_indent=" " * 12) for text in texts)


def as_called(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as modelc.NAME."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = _bound(name, signature, args, kwargs)
        for callback in CALLBACKS & signature.parameters.keys():
            bound.arguments[callback] = _passing(name, callback, bound.arguments.get(callback))
        if function.__module__ != LOADER:
            _check_numbers(name, bound)
        try:
            result = function(*bound.args, **bound.kwargs)
        except Cancelled as cancelled:
            raise cancelled.error from cancelled.error.__cause__
        for note in getattr(result, "notes", ()):
            logger.warning("%s: %s", name, note)
        return result

    call.__module__, call.__name__, call.__qualname__ = "modelc", name, name
    _describe(call, signature)
    return call


class _Type(str):
    """A type as it stands in the source, which help() shows without quotes."""

    __repr__ = str.__str__


def _describe(call: Callable[..., Any], signature: inspect.Signature) -> None:
    """Says a function's arguments where they are looked for: by help(), an interpreter, a notebook."""
    described: Any = call
    arguments = [a.replace(annotation=_Type(a.annotation)) for a in signature.parameters.values()]
    described.__signature__ = inspect.Signature(arguments, return_annotation=_Type(signature.return_annotation))
    del described.__wrapped__


def _bound(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments by name. Raises TypeError, as Python does, with the name that was meant."""
    listed = f"help(modelc.{name}) lists its arguments"
    for unknown in kwargs.keys() - signature.parameters.keys():
        close = get_close_matches(unknown, signature.parameters, 1)
        hint = f"did you mean {close[0]!r}?" if close else listed
        raise TypeError(f"modelc.{name}() got an unexpected keyword argument {unknown!r}; {hint}")
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"modelc.{name}() {error}; {listed}") from None


def _check_numbers(name: str, bound: inspect.BoundArguments) -> None:
    """Raises InputError for an argument that its annotation says to be a number, and that is none or out of limits."""
    for argument, given in bound.arguments.items():
        kind, _, optional = str(bound.signature.parameters[argument].annotation).partition(" | ")
        if kind not in ("int", "float") or (given is None and optional == "None"):
            continue
        least, most = LIMITS.get(argument, (-math.inf, math.inf))
        wanted: Any = Integral if kind == "int" else Real
        if isinstance(given, wanted) and not isinstance(given, bool) and least <= given <= most:
            continue
        expected = "a whole number" if kind == "int" else "a number"
        if argument in LIMITS:
            expected += f" from {least}" + (f" to {most}" if math.isfinite(most) else "")
        raise InputError(f"modelc.{name}() got {argument}={repr(given)[:80]}; expected {expected}")


def _passing(name: str, callback: str, given: Any) -> Any:
    """A user's callback, whose exceptions are passed on. What progress is told is logged too."""
    if callback == "watch":
        return _cancelling(given) if callable(given) else given
    if given is not None and not _takes_two(given):
        raise TypeError(
            f"modelc.{name}() tells progress two texts, the stage and what that is at: expected a function "
            f"progress(stage, text), found {given!r}"
        )
    tell = None if given is None else _cancelling(given)

    def told(stage: str, text: str) -> None:
        logger.info("%s: %s %s", name, stage, text)
        if tell is not None:
            tell(stage, text)

    return told


def _cancelling(callback: Callable[..., None]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        try:
            callback(*args)
        except Exception as error:
            raise Cancelled(error) from error

    return call


def _takes_two(progress: Any) -> bool:
    try:
        inspect.signature(progress).bind("", "")
    except ValueError:  # a function of C that does not say what it takes
        return True
    except TypeError:
        return False
    return True
