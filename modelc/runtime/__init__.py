"""The C runtime that goes into every package, and the Python loader. Imports the standard library and numpy alone, and
numpy where a package is loaded: modelc/errors.py has its root here, and is imported to say `modelc --help`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelc.runtime.bits import as_bits
    from modelc.runtime.files import ModelcError, ModelError, Stopped
    from modelc.runtime.interface import (
        disable_telemetry_events,
        enable_telemetry_events,
        get_build_info,
        get_version_string,
        set_default_logger_callback,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_seed,
    )
    from modelc.runtime.library import Frame
    from modelc.runtime.loader import Model, StepProfile, load
    from modelc.runtime.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
    from modelc.runtime.providers import get_all_providers, get_available_providers, get_device
    from modelc.runtime.session import InferenceSession
    from modelc.runtime.tensors import TensorInfo, Variant, aligned
    from modelc.runtime.values import IOBinding, ModelMetadata, NodeArg, OrtDevice, OrtValue

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "Frame",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "Model",
    "ModelError",
    "ModelMetadata",
    "ModelcError",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "StepProfile",
    "Stopped",
    "TensorInfo",
    "Variant",
    "aligned",
    "as_bits",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "load",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]
_HOMES = {
    "as_bits": "bits",
    **dict.fromkeys(("ModelError", "ModelcError", "Stopped"), "files"),
    "Frame": "library",
    **dict.fromkeys(("Model", "StepProfile", "load"), "loader"),
    **dict.fromkeys(("TensorInfo", "Variant", "aligned"), "tensors"),
    "InferenceSession": "session",
}  # everything else: what ONNX Runtime has beside its session


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'interface')}"), name)
    globals()[name] = value
    return value
