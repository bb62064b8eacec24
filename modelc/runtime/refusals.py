"""What sessions raise: errors of modelc's own, by the names under which programs catch ONNX Runtime's."""

from __future__ import annotations

from modelc.runtime.files import ModelError


class Fail(ModelError):
    """A model that cannot be compiled or run, an option that cannot be obeyed."""


class InvalidArgument(ModelError):
    """Inputs, names of outputs, providers."""


class MissingInput(InvalidArgument, ValueError):
    """ONNX Runtime raises a ValueError for it."""


class Unusable(InvalidArgument, RuntimeError):
    """What is no array, an entry that was never added: ONNX Runtime raises a RuntimeError for it."""


class NoModelType(InvalidArgument, TypeError):
    """What is neither a path nor bytes."""


class NoSuchFile(ModelError):
    """The model's file is not there."""


class InvalidProtobuf(ModelError):
    """The model's file is no ONNX."""


class InvalidGraph(ModelError):
    """Raised by ONNX Runtime alone, as those below: programs name them to catch them."""


class NotImplemented(ModelError):
    pass


class RuntimeException(ModelError):
    pass


class NoModel(ModelError):
    pass


class ModelLoaded(ModelError):
    pass


class EngineError(ModelError):
    pass


class EPFail(ModelError):
    pass
