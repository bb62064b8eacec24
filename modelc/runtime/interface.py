"""What a program finds in the module `onnxruntime`, beside its session: by these names it is in modelc.session too."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from modelc.runtime import refusals
from modelc.runtime.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from modelc.runtime.providers import get_all_providers, get_available_providers, get_device
from modelc.runtime.refusals import Unusable
from modelc.runtime.values import IOBinding, ModelMetadata, NodeArg, OrtDevice, OrtValue

VERSION = "1.20.0"  # of ONNX Runtime: the oldest that has all these members


def get_version_string() -> str:
    return VERSION


def get_build_info() -> str:
    return f"modelc, with the interface of ONNX Runtime {VERSION}"


def set_default_logger_severity(severity: int) -> None:
    """Sessions log nothing. Raises Unusable, as ONNX Runtime refuses other numbers."""
    if not 0 <= severity <= 4:
        raise Unusable(f"the severity is {severity}; expected 0 (verbose) to 4 (fatal)")


def set_default_logger_verbosity(verbosity: int) -> None:
    """Likewise."""


def set_default_logger_callback(callback: Callable[..., Any] | None) -> None:
    """Likewise."""


def set_seed(seed: int) -> None:
    """Random numbers of a model begin with the seed 0 in every session, whatever is set."""


def enable_telemetry_events() -> None:
    """Nothing is ever sent."""


def disable_telemetry_events() -> None:
    """Likewise."""


MEMBERS: tuple[Any, ...] = (
    *(ExecutionMode, ExecutionOrder, GraphOptimizationLevel, IOBinding, ModelMetadata, NodeArg, OrtDevice, OrtValue),
    *(RunOptions, SessionOptions),
    *(disable_telemetry_events, enable_telemetry_events, get_all_providers, get_available_providers, get_build_info),
    *(get_device, get_version_string, set_default_logger_callback, set_default_logger_severity),
    *(set_default_logger_verbosity, set_seed),
)
BY_NAME = {member.__name__: member for member in MEMBERS}
MODULES = ("onnxruntime_pybind11_state", "_pybind_state", "onnxruntime_inference_collection")  # of onnxruntime.capi


def capi_of(package: str, session: type) -> dict[str, ModuleType]:
    """onnxruntime.capi and its modules, which have all members and the errors, by their full names in `package`."""
    errors = {name: value for name, value in vars(refusals).items() if isinstance(value, type)}
    modules = {f"{package}.capi": ModuleType(f"{package}.capi")}
    for name in MODULES:
        full = f"{package}.capi.{name}"
        modules[full] = ModuleType(full)
        vars(modules[full]).update({**BY_NAME, **errors, "InferenceSession": session})
        setattr(modules[f"{package}.capi"], name, modules[full])
    return modules
