"""A package behind the interface of ONNX Runtime's InferenceSession: a program changes its import, and the path.

from modelc.runtime import InferenceSession
session = InferenceSession("MODEL.modelc")
(y,) = session.run(None, {"x": x})
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelc.runtime.files import ModelError
from modelc.runtime.loader import TensorInfo, load

TYPES = {"float32": "float", "float64": "double"}  # dtypes that ONNX Runtime calls otherwise
PROVIDER = "CPUExecutionProvider"


class NodeArg(NamedTuple):
    """An input or an output: of several variants an extent in which they differ is None; of a package for any size it
    is the text of what it is by the dimensions."""

    name: str
    type: str
    shape: list[int | str | None]


class SessionOptions:
    """What of ONNX Runtime's options a package has: `intra_op_num_threads`. Others can be set, and change nothing."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0


class InferenceSession:
    """An open package. `sess_options` gives the threads, if `threads` does not; `providers` may name the CPU alone.
    Raises ModelError for a package that cannot be opened."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str],
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        threads: int | None = None,
        **_: Any,
    ) -> None:
        if not isinstance(path_or_bytes, str | os.PathLike):
            raise ModelError("a session is opened on the path of a package, and not on bytes")
        names = [p if isinstance(p, str) else p[0] for p in providers or ()]
        if names and PROVIDER not in names:
            raise ModelError(f"packages run on the CPU: providers have {PROVIDER}, not {', '.join(names)} alone")
        asked = getattr(sess_options, "intra_op_num_threads", 0)
        self._model = load(path_or_bytes, threads=threads or asked or None)
        self._names = [t.name for t in self._model.outputs]

    def get_inputs(self) -> list[NodeArg]:
        return self._described([inputs for inputs, _ in self._model.boundaries])

    def get_outputs(self) -> list[NodeArg]:
        return self._described([outputs for _, outputs in self._model.boundaries])

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    @staticmethod
    def _described(variants: Sequence[Sequence[TensorInfo]]) -> list[NodeArg]:
        described = []
        for tensors in zip(*variants, strict=True):
            extents = zip(*(t.shape for t in tensors), strict=True)
            alike = (n[0] if len(set(n)) == 1 else None for n in extents)
            shape = [str(n) if isinstance(n, str) else n for n in alike]
            dtype = tensors[0].dtype
            described.append(NodeArg(tensors[0].name, f"tensor({TYPES.get(dtype, dtype)})", shape))
        return described

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[NDArray[Any]]:
        """The outputs of these names, or all, in order. Inputs are NumPy's arrays, or what has __dlpack__."""
        wanted = self._names if output_names is None else list(output_names)
        self._check(wanted)
        results = self._model.run({name: _array(value) for name, value in input_feed.items()})
        return [results[name] for name in wanted]

    def _check(self, names: Sequence[str]) -> None:
        if unknown := [name for name in names if name not in self._names]:
            raise ModelError(f"there is no output {unknown[0]!r}; the model's outputs are {', '.join(self._names)}")

    def io_binding(self) -> IOBinding:
        return IOBinding()

    def run_with_iobinding(self, binding: IOBinding, run_options: Any = None) -> None:
        """Runs on what is bound, and writes into arrays that are bound as outputs."""
        wanted = list(binding.outputs)
        self._check(wanted)
        given = {name: array for name, array in binding.outputs.items() if array is not None}
        results = self._model.run(binding.inputs, out=given or None)
        binding.results = [results[name] for name in wanted]

    def close(self) -> None:
        self._model.close()


class IOBinding:
    """Arrays that a session reads and writes."""

    def __init__(self) -> None:
        self.inputs: dict[str, NDArray[Any]] = {}
        self.outputs: dict[str, NDArray[Any] | None] = {}  # None: the session allocates it
        self.results: list[NDArray[Any]] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self.inputs[name] = _array(array)

    def bind_output(self, name: str, array: NDArray[Any] | None = None) -> None:
        """`array` is written into; also where it is another library's, of which `numpy.from_dlpack` gave a view."""
        self.outputs[name] = array

    def copy_outputs_to_cpu(self) -> list[NDArray[Any]]:
        return self.results

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()
        self.results = []


def _array(value: Any) -> NDArray[Any]:
    """What is no array of NumPy's is taken without a copy where it has DLPack's protocol; outputs have it too."""
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return np.asarray(value)
