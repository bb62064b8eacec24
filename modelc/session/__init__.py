"""Programs that were written for ONNX Runtime, run as they are: the module `onnxruntime`, with sessions that compile.

    import modelc.session as onnxruntime

    session = onnxruntime.InferenceSession("model.onnx")    # or bytes, or a package

or, for programs of others, before anything of theirs is imported:

    import modelc.session

    modelc.session.install()

packages.py   the package of a model for the shapes that it is run on, compiled once
compiled.py   a session's packages, by the shapes of its inputs
module.py     what `import onnxruntime` gives
"""

from typing import Any

from modelc.session import module as _module
from modelc.session.module import InferenceSession as InferenceSession
from modelc.session.module import install as install

__version__ = _module.VERSION
capi = _module.CAPI[f"{__name__}.capi"]


def __getattr__(name: str) -> Any:
    if name not in _module.BY_NAME:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: of ONNX Runtime's members it has those that "
            "docs/onnxruntime.md lists"
        )
    return _module.BY_NAME[name]


def __dir__() -> list[str]:
    return sorted(["InferenceSession", "__version__", "capi", "install", *_module.BY_NAME])
