"""modelc: ONNX models to self-contained native packages.

    import modelc

    result = modelc.compile("resnet50.onnx", target="native", output="resnet50.modelc")
    report = modelc.verify("resnet50.modelc", "resnet50.onnx")
    with modelc.load("resnet50.modelc") as model:
        outputs = model.run({"x": x})

The functions are imported when they are first used: `import modelc.runtime` needs the standard library and numpy alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "DoesNotApply": ("modelc.space.rules.rule", "DoesNotApply"),
    "Rule": ("modelc.space.rules.rule", "Rule"),
    "bench": ("modelc.verify.bench", "bench"),
    "diff": ("modelc.verify.diff", "diff"),
    "inspect": ("modelc.compile.describe", "inspect"),
    "load": ("modelc.runtime", "load"),
    "register_rule": ("modelc.space.rules.derivation", "register_rule"),
    "profile": ("modelc.verify.profile", "profile"),
    "verify_package": ("modelc.compile.verification", "verify"),
}
_ROOMS = ("build", "compile", "report", "tune", "verify")  # that can be called
__all__ = ["__version__", *_ROOMS, *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"modelc.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'modelc' has no attribute {name!r}")
    room, function = _HOMES[name]
    return getattr(import_module(room), function)
