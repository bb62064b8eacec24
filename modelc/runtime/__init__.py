"""The C runtime that goes into every package, and the Python loader. Imports the standard library and numpy alone, and
numpy where a package is loaded: modelc/errors.py has its root here, and is imported to say `modelc --help`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelc.runtime.bits import as_bits
    from modelc.runtime.files import ModelcError, ModelError, Stopped
    from modelc.runtime.loader import Frame, Model, StepProfile, TensorInfo, Variant, aligned, load
    from modelc.runtime.session import InferenceSession, SessionOptions

__all__ = [
    "Frame",
    "InferenceSession",
    "Model",
    "ModelError",
    "ModelcError",
    "SessionOptions",
    "StepProfile",
    "Stopped",
    "TensorInfo",
    "Variant",
    "aligned",
    "as_bits",
    "load",
]
_HOMES = {
    "as_bits": "bits",
    "ModelcError": "files",
    "ModelError": "files",
    "Stopped": "files",
    "InferenceSession": "session",
    "SessionOptions": "session",
}  # everything else: the loader


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'loader')}"), name)
    globals()[name] = value
    return value
