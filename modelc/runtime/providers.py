"""Execution providers: there is one, the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from modelc.runtime.refusals import InvalidArgument

PROVIDER = "CPUExecutionProvider"


def get_available_providers() -> list[str]:
    return [PROVIDER]


def get_all_providers() -> list[str]:
    return [PROVIDER]


def get_device() -> str:
    return "CPU"


def check_providers(providers: Sequence[Any] | None, options: Sequence[Any] | None = None) -> None:
    """Warns of providers beside the CPU, as ONNX Runtime does of those that it has not. Raises InvalidArgument where
    the CPU is not among them."""
    if isinstance(providers, str) or not isinstance(providers or (), Sequence):
        raise InvalidArgument(f"providers is {providers!r}; expected a list, such as [{PROVIDER!r}]")
    names = [p[0] if isinstance(p, tuple) and p else p for p in providers or ()]
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise InvalidArgument(f"providers has {wrong[0]!r}; expected names, or pairs of a name and its options")
    if options is not None and len(options) != len(names):
        raise InvalidArgument(f"provider_options has {len(options)} entries; expected one for each of {len(names)}")
    others = [name for name in names if name != PROVIDER]
    if names and PROVIDER not in names:
        raise InvalidArgument(f"packages run on the CPU: providers have {PROVIDER}, not {', '.join(names)} alone")
    if others:
        warnings.warn(f"{', '.join(others)} is not available: the model runs on {PROVIDER}", stacklevel=4)
