"""Models as users give them: a file, or what is in memory, which is a file while it is worked on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from modelc.errors import ModelError, blaming
from modelc.scratch import TemporaryFolder


class Proto(Protocol):
    """An onnx.ModelProto."""

    def SerializeToString(self) -> bytes: ...


ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | Proto"
UNNAMED = "model"  # what a model is called that is no file


@contextmanager
def model_file(model: ModelSource, name: str = UNNAMED) -> Iterator[Path]:
    """The file that a model is in: of one in memory NAME.onnx, in a folder that nobody but this user reads and that is
    removed afterwards. Raises ModelError, and TypeError for what is no model."""
    if isinstance(model, str | os.PathLike):
        yield Path(model)
        return
    data = model if isinstance(model, bytes) else _serialised(model)
    with TemporaryFolder("model") as folder:
        path = Path(folder) / f"{name}.onnx"
        with blaming("the model in memory"):
            path.write_bytes(data)
        yield path


def _serialised(model: Proto) -> bytes:
    if not hasattr(model, "SerializeToString"):
        raise TypeError(
            "expected a model: its path, the bytes of an ONNX file, or an onnx.ModelProto; found "
            f"{type(model).__name__}"
        )
    try:
        return model.SerializeToString()
    except Exception as error:  # of protobuf, which has others in each of its implementations
        raise ModelError(
            f"the model in memory cannot be written ({error}): a model of more than 2 GB is saved with its tensors in "
            "files beside it (onnx.save_model with save_as_external_data), and given by its path"
        ) from None
