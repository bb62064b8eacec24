"""A package behind the interface of ONNX Runtime's InferenceSession: a program changes its import, and the path.

from modelc.runtime import InferenceSession
session = InferenceSession("MODEL.modelc")
(y,) = session.run(None, {"x": x})

modelc.session has the same for .onnx files.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from modelc.runtime.files import ModelError
from modelc.runtime.loader import Model, load
from modelc.runtime.options import RunOptions, SessionOptions, check_options
from modelc.runtime.providers import PROVIDER, check_providers
from modelc.runtime.refusals import Fail, InvalidArgument, MissingInput, NoModelType
from modelc.runtime.tensors import bits_dtype, numpy_dtype
from modelc.runtime.values import IOBinding, ModelMetadata, NodeArg, OrtValue, as_array, type_of

Array = NDArray[Any]
Callback = Callable[[list[Array], Any, str], None]


class Declared(NamedTuple):
    """An input or an output as a model declares it. `dims` is None where it says no shape; a dimension is a number, its
    name, or None."""

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None

    @property
    def arg(self) -> NodeArg:
        return NodeArg(self.name, type_of(self.dtype), list(self.dims or ()))


class Expected(NamedTuple):
    """What an input has to be: of one of the dtypes (its own, and that of its bits), with so many dimensions and these
    extents by axis. `rank` is None where any shape is right."""

    declared: Declared
    dtypes: tuple[np.dtype[Any], ...]
    rank: int | None
    extents: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, declared: Declared) -> Expected:
        dims, dtypes = declared.dims, (numpy_dtype(declared.dtype), bits_dtype(declared.dtype))
        extents = tuple((axis, dim) for axis, dim in enumerate(dims or ()) if isinstance(dim, int))
        return cls(declared, dtypes, None if dims is None else len(dims), extents)

    def taken(self, value: Any) -> Array:
        """The value as such an array; one number is a scalar, as ONNX Runtime takes it. Raises InvalidArgument."""
        array: Array = value
        if type(value) is not np.ndarray or value.dtype not in self.dtypes:
            array = as_array(self.declared.name, value, self.declared.dtype)
            if array.dtype not in self.dtypes:
                name, dtype, _ = self.declared
                raise InvalidArgument(f"input '{name}' is {array.dtype.name}; the model takes {dtype}")
        if self.rank == 0 and array.size == 1:
            array = array.reshape(())
        shape = array.shape
        if self.rank is not None and len(shape) != self.rank:
            self._refuse(shape)
        for axis, extent in self.extents:
            if shape[axis] != extent:
                self._refuse(shape)
        return array

    def _refuse(self, shape: tuple[int, ...]) -> NoReturn:
        name, _, dims = self.declared
        raise InvalidArgument(f"input '{name}' has the shape {list(shape)}; the model takes {list(dims or ())}")


class Source(Protocol):
    """Where the packages of a session come from."""

    @property
    def inputs(self) -> Sequence[Declared]: ...

    @property
    def outputs(self) -> Sequence[Declared]: ...

    @property
    def initialisers(self) -> Sequence[Declared]:
        """Constants of the model that it calls inputs."""

    @property
    def constants(self) -> Mapping[str, Array]:
        """Inputs that have these values in any case."""

    @property
    def metadata(self) -> ModelMetadata: ...

    def model_for(self, arrays: Mapping[str, Array]) -> tuple[Model, Mapping[str, Array]]:
        """What runs on these inputs, and those of them that it takes."""

    def opened(self) -> Iterable[Model]:
        """What has been opened up to now."""

    def close(self) -> None:
        """Frees what is open."""


class Packaged:
    """The Source that is one package. Raises ModelError where it cannot be opened."""

    initialisers: Sequence[Declared] = ()

    def __init__(self, path: str | os.PathLike[str], threads: int | None) -> None:
        self.model = load(path, threads=threads)
        self.inputs = _declared([inputs for inputs, _ in self.model.boundaries])
        self.outputs = _declared([outputs for _, outputs in self.model.boundaries])
        self.metadata = ModelMetadata.of(self.model.metadata.get("origin"))
        self.constants = self.model.constants

    def model_for(self, arrays: Mapping[str, Array]) -> tuple[Model, Mapping[str, Array]]:
        return self.model, arrays

    def opened(self) -> Iterable[Model]:
        return (self.model,)

    def close(self) -> None:
        self.model.close()


class InferenceSession:
    """An open package. `sess_options` gives the threads, if `threads` does not; `providers` may name the CPU alone.
    Raises ModelError for a package that cannot be opened."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        threads: int | None = None,
        **_: Any,
    ) -> None:
        check_providers(providers, provider_options)
        check_options(sess_options)
        self._options: Any = sess_options if sess_options is not None else SessionOptions()
        asked = getattr(self._options, "intra_op_num_threads", 0)
        self._source = self._source_of(path_or_bytes, threads or max(asked, 0) or None)
        self._expected = {declared.name: Expected.of(declared) for declared in self._source.inputs}
        self._names = [declared.name for declared in self._source.outputs]
        self._profiled = dict[int, Model]()
        self._profiling_since = time.monotonic_ns() if getattr(self._options, "enable_profiling", False) else 0

    def _source_of(self, model: Any, threads: int | None) -> Source:
        if not isinstance(model, str | os.PathLike):
            raise NoModelType(
                "a session is opened on the path of a package, and not on bytes; modelc.session takes both"
            )
        return Packaged(model, threads)

    # --- what is said of the model --------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return [declared.arg for declared in self._source.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [declared.arg for declared in self._source.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Constants of the model that it calls inputs: here they may be given with their own values alone."""
        return [declared.arg for declared in self._source.initialisers]

    @property
    def input_dtypes(self) -> dict[str, str]:
        return {declared.name: declared.dtype for declared in (*self._source.inputs, *self._source.initialisers)}

    def get_modelmeta(self) -> ModelMetadata:
        return self._source.metadata

    def get_session_options(self) -> Any:
        return self._options

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: {}}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        check_providers(providers, provider_options)

    def enable_fallback(self) -> None:
        """There is one provider, and none to fall back to."""

    def disable_fallback(self) -> None:
        """Likewise."""

    # --- runs -----------------------------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Array]:
        """The outputs of these names, or all, in order. Inputs are NumPy's arrays, lists of numbers, OrtValues, or what
        has __dlpack__. Raises MissingInput, Unusable, InvalidArgument; Fail where the run was ended."""
        wanted = self._wanted(output_names)
        results = self._results(input_feed, None, run_options)
        return [results[name] for name in wanted]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        return [OrtValue(array) for array in self.run(output_names, input_dict_ort_values, run_options)]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """`callback(outputs, user_data, error)` is called in a thread of its own; `error` is empty where there is none.
        Raises MissingInput at once."""
        self._check_given(input_feed)
        wanted = self._wanted(output_names)

        def run() -> None:
            try:
                results, error = self._results(input_feed, None, run_options), ""
            except ModelError as refusal:
                results, error = {}, str(refusal)
            callback([results[name] for name in wanted] if not error else [], user_data, error)

        threading.Thread(target=run, daemon=True).start()

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Runs on what is bound, and writes into what is bound as outputs."""
        wanted = self._wanted(list(iobinding.outputs) or None)
        places = {name: array for name, array in iobinding.outputs.items() if array is not None}
        results = self._results(iobinding.inputs, places or None, run_options)
        iobinding.results = [results[name] for name in wanted]

    def _results(
        self, given: Mapping[str, Any], out: Mapping[str, Array] | None, run_options: RunOptions | None
    ) -> dict[str, Array]:
        if run_options is not None and getattr(run_options, "terminate", False):
            raise Fail("the run has not begun, as its RunOptions.terminate is true")
        model, arrays = self._source.model_for(self._taken(given))
        if self._profiling_since and id(model) not in self._profiled:
            self._profiled[id(model)] = model
            model.profile_start()
        try:
            return model.run(arrays, out=out)
        except InvalidArgument:
            raise
        except ModelError as error:
            raise InvalidArgument(str(error)) from error

    def _wanted(self, names: Sequence[str] | None) -> Sequence[str]:
        if not names:
            return self._names
        if isinstance(names, str):
            raise TypeError(f"output_names is {names!r}; expected a list of names")
        for name in names:
            if name not in self._names:
                raise InvalidArgument(f"there is no output {name!r}; the model's outputs are {', '.join(self._names)}")
        return names

    def _check_given(self, given: Mapping[str, Any]) -> None:
        if missing := [name for name in self._expected if name not in given]:
            raise MissingInput(
                f"the inputs {', '.join(map(repr, missing))} are missing; the model takes "
                f"{', '.join(map(repr, self._expected))}, and was given {', '.join(map(repr, given)) or 'none'}"
            )

    def _taken(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs as arrays of the declared dtypes and shapes; constants are compared, and left out."""
        arrays = {}
        for name, value in given.items():
            expected = self._expected.get(name)
            if expected is None:
                self._check_constant(name, value)
            else:
                arrays[name] = expected.taken(value)
        if len(arrays) != len(self._expected):
            self._check_given(given)
        return arrays

    def _check_constant(self, name: str, value: Any) -> None:
        constant = self._source.constants.get(name)
        if constant is None:
            raise InvalidArgument(f"there is no input {name!r}; the model takes {', '.join(map(repr, self._expected))}")
        array = as_array(name, value, constant.dtype.name)
        if array.shape != constant.shape or not np.array_equal(array, constant, equal_nan=constant.dtype.kind == "f"):
            raise InvalidArgument(
                f"the input {name!r} is the constant {str(constant.tolist())[:80]} in what was compiled, and was "
                f"given as {str(array.tolist())[:80]}: give it the same value, or leave it out"
            )

    # --- profiles -------------------------------------------------------------------------------------------------

    def get_profiling_start_time_ns(self) -> int:
        """As time.monotonic_ns() gives it; 0 where `enable_profiling` is not set."""
        return self._profiling_since

    def end_profiling(self) -> str:
        """Writes what each kernel took since the session was opened, all its calls together, as events for Chrome's
        trace viewer, and gives the file's name; empty where `enable_profiling` is not set."""
        if not self._profiling_since:
            return ""
        events, at = list[dict[str, Any]](), 0.0
        for model in self._profiled.values():
            model.profile_stop()
            for step in (step for variant in range(len(model.variants)) for step in model.profile_read(variant)):
                took = 1e6 * step.seconds
                event = {
                    "cat": "Node",
                    "pid": os.getpid(),
                    "tid": 0,
                    "ph": "X",
                    "name": step.name,
                    "ts": at,
                    "dur": took,
                }
                events.append({**event, "args": {"calls": step.calls, "flops": step.flops, "bytes": step.bytes}})
                at += took
        self._profiled, self._profiling_since = {}, 0
        name = f"{self._options.profile_file_prefix}{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        with open(name, "w") as file:
            json.dump(events, file)
        return name

    def close(self) -> None:
        self._source.close()


def _declared(variants: Sequence[Sequence[Any]]) -> list[Declared]:
    """The inputs or outputs of a package: an extent in which its variants differ is None, a free one a text."""
    described = []
    for tensors in zip(*variants, strict=True):
        extents = zip(*(tensor.shape for tensor in tensors), strict=True)
        alike = (n[0] if len(set(n)) == 1 else None for n in extents)
        dims = tuple(str(n) if isinstance(n, str) else n for n in alike)
        described.append(Declared(tensors[0].name, tensors[0].dtype, dims))
    return described
