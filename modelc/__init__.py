"""modelc: ONNX models to self-contained native packages.

    import modelc

    result = modelc.compile("resnet50.onnx", target="native", output="resnet50.modelc")
    report = modelc.verify("resnet50.modelc", "resnet50.onnx")
    with modelc.load("resnet50.modelc") as model:
        outputs = model.run({"x": x})

The functions are imported when they are first used: `import modelc.runtime` needs the standard library and numpy alone.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

__version__ = "0.1.0"
DISTRIBUTION = "modelc-compiler"  # what pip installs; the distribution `modelc` on PyPI is another's

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
    if name in _ROOMS:
        return import_module(f"modelc.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'modelc' has no attribute {name!r}")
    room, function = _HOMES[name]
    return getattr(import_module(room), function)
