"""The errors that modelc raises for a user's mistakes.

Each is a sentence: what was expected, what was found, where, and what to do about it. The command line prints it
without a traceback and exits with `exit_code`; anything else that escapes is a bug of modelc.
"""

from __future__ import annotations


class ModelcError(Exception):
    """A mistake in what modelc was given. `str(error)` is the sentence that the user reads."""

    exit_code = 2


class ModelError(ModelcError):
    """The model: not an ONNX file, an unknown operator, a free dimension, a wrong shape."""


class TargetError(ModelcError):
    """The target: unknown name, malformed YAML, an impossible number, a missing feature."""


class ConfigError(ModelcError):
    """The pipeline's configuration: an unknown stage, key or value."""


class PackageError(ModelcError):
    """The package: a damaged or missing file, a newer schema, an output path that cannot be written."""


class InputError(ModelcError):
    """What a model is run with: wrong names, dtypes or shapes."""


class ToolchainError(ModelcError):
    """No compiler or emulator for the target, or one that failed."""


class VerificationError(ModelcError):
    """The package computes something else than ONNX Runtime does."""

    exit_code = 1


class InvalidIR(Exception):
    """A pass left an invalid Graph, Block, Task or Nest: a bug of modelc that names the pass and the place."""
