"""modelc: ONNX models to self-contained native packages.

    import modelc

    result = modelc.compile("resnet50.onnx", target="native", output="resnet50.modelc")
    report = modelc.verify("resnet50.modelc", "resnet50.onnx")
    with modelc.load("resnet50.modelc") as model:
        outputs = model.run({"x": x})

Every mistake in what it was given is a ModelcError, whose text is a sentence. docs/api.md has all functions; `progress`
and logging are as modelc/verb.py says. What is listed here is imported when it is first used: `import modelc.runtime`
needs the standard library and numpy alone.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what editors and mypy see; a test compares it with _HOMES
    from modelc import database as database
    from modelc.build.command import BuildResult as BuildResult
    from modelc.build.command import build as build
    from modelc.compile import targets as targets
    from modelc.compile.describe import inspect as inspect
    from modelc.compile.doctor import Finding as Finding
    from modelc.compile.doctor import doctor as doctor
    from modelc.compile.reduction import Reduced as Reduced
    from modelc.compile.reduction import reduce as reduce
    from modelc.compile.result import CompileResult as CompileResult
    from modelc.compile.verification import verify as verify
    from modelc.errors import ConfigError as ConfigError
    from modelc.errors import DatabaseError as DatabaseError
    from modelc.errors import InputError as InputError
    from modelc.errors import InternalError as InternalError
    from modelc.errors import MeasureError as MeasureError
    from modelc.errors import ModelcError as ModelcError
    from modelc.errors import ModelError as ModelError
    from modelc.errors import PackageError as PackageError
    from modelc.errors import TargetError as TargetError
    from modelc.errors import ToolchainError as ToolchainError
    from modelc.errors import VerificationError as VerificationError
    from modelc.package import Package as Package
    from modelc.package import read_package as read_package
    from modelc.quantize.command import compile as compile
    from modelc.report.command import report as report
    from modelc.runtime import Model as Model
    from modelc.runtime import load as load
    from modelc.space.rules.derivation import register_rule as register_rule
    from modelc.space.rules.rule import DoesNotApply as DoesNotApply
    from modelc.space.rules.rule import Rule as Rule
    from modelc.target import Target as Target
    from modelc.tune.command import TuneResult as TuneResult
    from modelc.tune.command import tune as tune
    from modelc.verify.bench import bench as bench
    from modelc.verify.diff import diff as diff
    from modelc.verify.profile import profile as profile
    from modelc.verify.report import Report as Report
    from modelc.verify.run import run as run

__version__ = "0.1.0"
DISTRIBUTION = "modelc-compiler"  # what pip installs; the distribution `modelc` on PyPI is another's

_HOMES = {  # functions, in the order of docs/api.md; namespaces; what functions give; what they raise; what extends
    "compile": ("modelc.quantize.command", "compile"),
    "tune": ("modelc.tune.command", "tune"),
    "build": ("modelc.build.command", "build"),
    "load": ("modelc.runtime", "load"),
    "run": ("modelc.verify.run", "run"),
    "verify": ("modelc.compile.verification", "verify"),
    "bench": ("modelc.verify.bench", "bench"),
    "profile": ("modelc.verify.profile", "profile"),
    "inspect": ("modelc.compile.describe", "inspect"),
    "read_package": ("modelc.package", "read_package"),
    "diff": ("modelc.verify.diff", "diff"),
    "report": ("modelc.report.command", "report"),
    "reduce": ("modelc.compile.reduction", "reduce"),
    "doctor": ("modelc.compile.doctor", "doctor"),
    "register_rule": ("modelc.space.rules.derivation", "register_rule"),
    "targets": ("modelc.compile", "targets"),
    "database": ("modelc", "database"),
    "CompileResult": ("modelc.compile.result", "CompileResult"),
    "TuneResult": ("modelc.tune.command", "TuneResult"),
    "BuildResult": ("modelc.build.command", "BuildResult"),
    "Model": ("modelc.runtime", "Model"),
    "Report": ("modelc.verify.report", "Report"),
    "Package": ("modelc.package", "Package"),
    "Reduced": ("modelc.compile.reduction", "Reduced"),
    "Finding": ("modelc.compile.doctor", "Finding"),
    "Target": ("modelc.target", "Target"),
    "Rule": ("modelc.space.rules.rule", "Rule"),
    "DoesNotApply": ("modelc.space.rules.rule", "DoesNotApply"),
    "ModelcError": ("modelc.errors", "ModelcError"),
    "ModelError": ("modelc.errors", "ModelError"),
    "TargetError": ("modelc.errors", "TargetError"),
    "ConfigError": ("modelc.errors", "ConfigError"),
    "PackageError": ("modelc.errors", "PackageError"),
    "InputError": ("modelc.errors", "InputError"),
    "ToolchainError": ("modelc.errors", "ToolchainError"),
    "MeasureError": ("modelc.errors", "MeasureError"),
    "DatabaseError": ("modelc.errors", "DatabaseError"),
    "VerificationError": ("modelc.errors", "VerificationError"),
    "InternalError": ("modelc.errors", "InternalError"),
}
__all__ = ["__version__", *_HOMES]
_ROOMS = ("build", "compile", "report", "tune", "verify")  # rooms that are called like a function


class _Library(ModuleType):
    """Rooms have the names of functions, and importing one sets it here: the function stays what it is."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _ROOMS or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Library


def _warn_of_namesakes() -> None:
    """Of a foreign distribution `modelc` in the same folder: whichever was installed last has replaced files of the
    other."""
    with os.scandir(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) as beside:
        namesakes = [entry.name for entry in beside if entry.name.startswith("modelc-") and ".dist-info" in entry.name]
    if namesakes:
        name, version = namesakes[0].removesuffix(".dist-info").split("-", 1)
        warnings.warn(
            f"another distribution of the name {name} ({version}) is installed in the folder of {DISTRIBUTION}, and "
            f"each replaces files of the other: run `pip uninstall {name}`, then install {DISTRIBUTION} again",
            stacklevel=3,
        )


_warn_of_namesakes()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'modelc' has no attribute {name!r}")
    home, own = _HOMES[name]
    value = import_module(f"{home}.{own}") if name in ("targets", "database") else getattr(import_module(home), own)
    if isinstance(value, FunctionType):
        value = import_module("modelc.verb").as_called(name, value)
        if name in _ROOMS:  # what is in the room has its names still: modelc.compile.stages
            room = import_module(f"modelc.{name}").__dict__
            room.update(value.__dict__)
            value.__dict__ = room
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
