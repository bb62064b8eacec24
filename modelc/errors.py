"""The errors that modelc raises for a user's mistakes, and what becomes of its own. Their root, ModelcError, and what
loading and running a package raises are the runtime's, which imports nothing of ours.

Each is a sentence: what was expected, what was found, where, and what to do about it. The command line prints it
without a traceback and exits with `exit_code`. Anything else that escapes is a bug of modelc: `blaming` makes it an
InternalError, which says where it happened.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from modelc import DISTRIBUTION
from modelc.runtime.files import ModelcError as ModelcError
from modelc.runtime.files import ModelError as ModelError


def extra(name: str) -> str:
    """The command that installs what an extra of ours needs."""
    return f"pip install '{DISTRIBUTION}[{name}]'"


class NotKnown(ModelError):
    """A value that has to be known when compiling, and is computed when the model runs."""

    def __init__(self, sentence: str, value: str = "") -> None:
        super().__init__(sentence)
        self.value = value


class TargetError(ModelcError):
    """The target: unknown name, malformed YAML, an impossible number, a missing feature."""


class ConfigError(ModelcError):
    """The pipeline's configuration: an unknown stage, key or value."""


class PackageError(ModelcError):
    """The package: a damaged or missing file, a newer schema, an output path that cannot be written."""


class InputError(ModelcError):
    """What a model is run with: wrong names, dtypes or shapes."""


class OutputError(ModelcError):
    """Stdout: a full disk, a closed descriptor."""


class TemporaryError(ModelcError):
    """No room for temporary files."""


class ProcessError(ModelcError):
    """A fork that was ended from outside, or could not be started."""


class ToolchainError(ModelcError):
    """No compiler or emulator for the target, or one that failed."""


class MeasureError(ModelcError):
    """Candidates cannot be measured: no process to build or to run them in."""


class Unmeasurable(MeasureError):
    """Nothing can be measured any more: a board or a cluster that is not there, or takes nothing."""


class DatabaseError(ModelcError):
    """The tuning database: no such file, another program's, damaged, locked, no room; a record that is none."""


class CacheError(ModelcError):
    """The cache: its file cannot be read or removed."""


class VerificationError(ModelcError):
    """The package computes something else than ONNX Runtime does."""

    exit_code = 1


class InvalidIR(Exception):
    """A pass left an invalid Graph, Block, Task or Nest: a bug of modelc that names the pass and the place."""


class InvalidCandidate(InvalidIR):
    """A Candidate that is no schedule of its Task: `str(error)` names the block and knob, the stage, or the layout."""


# What Python raises where data that fit their schema do not fit what they are applied to.
MISFIT = (ArithmeticError, AssertionError, LookupError, StopIteration, TypeError, ValueError)


class Escaped(ModelcError):
    """Something that no stage foresaw. `places` are what it came through, the innermost first; its cause is the
    exception itself."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error
        self.places: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = ", ".join(dict.fromkeys(reversed(self.places)))
        return f"{where}: {self._sentence()}" if where else self._sentence()

    def _sentence(self) -> str:
        raise NotImplementedError


class InternalError(Escaped):
    """A mistake of modelc's own."""

    exit_code = 3

    def _sentence(self) -> str:
        kind, first = type(self.error).__name__, next(iter(str(self.error).strip().splitlines()), "")
        return (
            f"internal error ({kind}{f': {first}' if first else ''}); this is a mistake of modelc; "
            "please report it with the model, which `modelc reduce` makes small; --debug shows the traceback"
        )


class ExhaustedError(Escaped):
    """Memory, disk space or open files ran out."""

    def _sentence(self) -> str:
        if isinstance(self.error, FileNotFoundError):
            return f"{self.error.strerror}: make room there, or name another folder by TMPDIR"
        if isinstance(self.error, OSError):
            return f"{self.error.strerror}: free some, and try again"
        return "this needs more memory than there is"


EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def escaped(error: Exception) -> Escaped:
    """What the user is told of an exception that is no ModelcError."""
    if isinstance(error, Escaped):
        return error
    full = isinstance(error, OSError) and error.errno in EXHAUSTED
    # What tempfile raises where no folder takes a file.
    full |= isinstance(error, FileNotFoundError) and "No usable temporary directory" in (error.strerror or "")
    ran_out = full or isinstance(error, MemoryError)
    return ExhaustedError(error) if ran_out else InternalError(error)


@contextmanager
def blaming(place: str) -> Iterator[None]:
    """Lets ModelcErrors through; makes an Escaped of everything else. It is told `place` in both cases."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ModelcError) and not isinstance(error, Escaped):
            raise
        known = escaped(error)
        known.places += (place,)
        if known is error:
            raise
        raise known from error
