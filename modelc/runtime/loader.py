"""Loads and runs a compiled model. Standard library and numpy alone; every package has it in one file.

    import loader                       # or: from modelc import runtime
    with loader.load("NAME.modelc") as model:
        outputs = model.run({"x": x})

Loading a package executes the library in it: load only packages whose origin you trust.
"""

from __future__ import annotations

import ast
import base64
import ctypes
import importlib
import json
import math
import operator
import os
import platform
import signal
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelc.runtime.files import AGAIN, MANIFEST, LibraryFile, ModelError, Stopped, checked_files, folder_of
from modelc.runtime.shown import boundary, extents_shown, page, range_text, table

LINE_BYTES = 64  # of a cache line
MOST_THREADS = 1024  # of the library, too
MOST_SECONDS = 10**9  # of a time limit, whose nanoseconds fit 64 bits
KEPT_OUTPUTS = 2  # of each output: while the last result is looked at, the next is computed

Array = NDArray[Any]


class TensorInfo(NamedTuple):
    """An input or an output. Arrays of bfloat16, and of the dtypes that take less than a byte's worth of digits, are
    ml_dtypes' where that can be imported, and else their bits in uint16 and uint8; inputs may be either."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Variant(NamedTuple):
    """The model as compiled for one set of input shapes."""

    inputs: list[TensorInfo]
    outputs: list[TensorInfo]


class StepProfile(NamedTuple):
    """One kernel's share of the time: `seconds` over all `calls`; flops and bytes of one call."""

    name: str
    calls: int
    seconds: float
    flops: float
    bytes: float


_FLOATS = ("float32", "float64", "float16", "bfloat16")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
_NARROW = (*_FLOAT8, "float4_e2m1fn", "int4", "uint4", "int2", "uint2")
DTYPES = (*_FLOATS, *_INTEGERS, "bool", *_NARROW)  # in the order of modelc_dtype in model.h
ELF_MACHINES = {62: "x86_64", 183: "aarch64", 40: "arm", 243: "riscv64"}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_size_t),
    ]


_I32, _P = ctypes.c_int32, ctypes.c_void_p


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("threads", _I32), ("check", _I32), ("seed", ctypes.c_uint64)]


class _Profile(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("calls", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("flops", ctypes.c_double),
        ("bytes", ctypes.c_double),
    ]


class Frame(ctypes.Structure):
    """Where the data of a run lies: modelc_frame in model.h."""

    _fields_ = [
        ("arena", _P),
        ("params", _P),
        ("inputs", ctypes.POINTER(_P)),
        ("outputs", ctypes.POINTER(_P)),
        ("random", _P),
        ("slots", ctypes.POINTER(_P)),
        ("sizes", _P),
        ("iteration", ctypes.c_int64),
        ("dims", _P),
    ]


LENGTH, FOUND = -1, -2  # in place of an input that says a size
STOPPED, INTERRUPTED, LATE = 9, 10, 11  # of modelc_status in model.h
_POLLER = ctypes.CFUNCTYPE(ctypes.c_int, _P)
_WATCHER = ctypes.CFUNCTYPE(None, _P, _I32, _I32, _I32, ctypes.POINTER(Frame))
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {  # in the order of modelc_api in model.h
    "open": (_I32, (ctypes.c_char_p, ctypes.POINTER(_Options), ctypes.POINTER(_P))),
    "close": (None, (_P,)),
    "last_error": (ctypes.c_char_p, ()),
    "metadata": (ctypes.c_char_p, (_P,)),
    "thread_count": (_I32, (_P,)),
    "variant_count": (_I32, (_P,)),
    "input_count": (_I32, (_P, _I32)),
    "output_count": (_I32, (_P, _I32)),
    "input": (ctypes.POINTER(_Tensor), (_P, _I32, _I32)),
    "output": (ctypes.POINTER(_Tensor), (_P, _I32, _I32)),
    "run": (_I32, (_P, _I32, _P, _P)),
    "fit": (_I32, (_P, _P, _P)),
    "run_shaped": (_I32, (_P, _I32, _P, _P, _P)),
    "output_shape": (_I32, (_P, _I32, _I32, _P)),
    "reset": (_I32, (_P,)),
    "profile_start": (_I32, (_P,)),
    "profile_stop": (_I32, (_P,)),
    "step_count": (_I32, (_P, _I32)),
    "profile_read": (_I32, (_P, _I32, _I32, ctypes.POINTER(_Profile))),
    "watch": (_I32, (_P, _WATCHER, _P)),
    "memory_size": (ctypes.c_size_t, ()),
    "init": (_P, (_P,)),
    "stop": (None, (_P, _I32)),
    "poll": (_I32, (_P, _POLLER, _P)),
    "open_memory": (_I32, (_P, ctypes.c_size_t, ctypes.POINTER(_Options), ctypes.POINTER(_P))),
    "open_fd": (_I32, (_I32, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(_Options), ctypes.POINTER(_P))),
    "time_limit": (_I32, (_P, ctypes.c_uint64)),
    "seed": (_I32, (_P, ctypes.c_uint64)),
}


class _Table(ctypes.Structure):
    """modelc_api, as far as it is used here."""

    _fields_ = [("size", ctypes.c_size_t), *((name, _P) for name in _FUNCTIONS)]


class Library:
    """The library of a package: its functions by their names in modelc_api; None for one that it does not have."""

    def __init__(self, library: ctypes.CDLL, prefix: str) -> None:
        self._library = library  # which is there as long as its functions are
        give = getattr(library, f"{prefix}_api")
        give.restype, give.argtypes = ctypes.POINTER(_Table), ()
        table = give().contents
        for name, (result, arguments) in _FUNCTIONS.items():
            address = getattr(table, name) if getattr(_Table, name).offset < table.size else None
            setattr(self, name, address and ctypes.CFUNCTYPE(result, *arguments)(address))

    def __getattr__(self, name: str) -> Any:  # what the table has
        raise AttributeError(name)


def load(path: str | os.PathLike[str], threads: int | None = None, check: bool = False, seed: int = 0) -> Model:
    """Opens a package to run it. This executes the library in it, after its checksum has been compared.

    Args:
        path: The package: a folder, or a .zip.
        threads: On how many threads it runs. Default: what affinity and cgroup allow.
        check: Whether the checksum of every file is compared, which reads all of params.bin.
        seed: Of the random numbers that the model draws, from 0 to 2^64 - 1.

    Returns:
        A Model, which `with` closes: `run({"x": array})` gives the outputs by name; `inputs` and `outputs` are those of
        its first variant, each with name, dtype and shape.

    Raises:
        ModelError: The package is damaged, or for another machine; in a run, that inputs do not fit.

    Example:
        >>> with modelc.load("net.modelc", threads=1) as model:
        ...     outputs = model.run({"x": np.ones((1, 3, 20, 24), np.float32)})
        >>> outputs["y"].dtype, outputs["y"].shape
        (dtype('float32'), (1, 10))
    """
    return Model(os.fspath(path), threads, check, seed)


class Model:
    """An open package. Calls from several threads are right, and take turns; open it twice to run twice at a time."""

    def __init__(self, path: str, threads: int | None = None, check: bool = False, seed: int = 0) -> None:
        self._handle = _P()
        self._bounds: list[_Bound] = []
        self._watcher: Any = None
        self._lock = threading.Lock()
        self._closing = threading.RLock()  # held where the handle is freed, or used beside a run
        self._acquire, self._release = self._lock.acquire, self._lock.release  # half the time of a with
        threads = 0 if threads is None else _whole("threads", threads, 0, MOST_THREADS)
        seed = _whole("seed", seed, 0, 2**64 - 1)
        path = folder_of(path)
        manifest, library_file = checked_files(path, check)
        self._library = library = _open_library(path, library_file)
        options = _Options(ctypes.sizeof(_Options), threads, 0, seed)  # the checksums have been compared
        if library.open(os.fsencode(path), ctypes.byref(options), ctypes.byref(self._handle)):
            raise ModelError(_text(library.last_error()))
        self._poller = _poller()  # ctypes keeps no callback
        if library.poll and self._poller:
            library.poll(self._handle, self._poller, None)
        self.threads: int = library.thread_count(self._handle)
        self.metadata: dict[str, Any] = json.loads(_text(library.metadata(self._handle)))
        count = library.variant_count(self._handle)
        self.variants = [Variant(self._tensors("input", v), self._tensors("output", v)) for v in range(count)]
        if _variants_of(manifest) != self.variants:
            raise ModelError(f"{path}/{MANIFEST} describes other inputs or outputs than {library_file.name}: {AGAIN}")
        self.inputs, self.outputs = self.variants[0]  # of the first variant
        self.constants = _constants(manifest)  # inputs of the ONNX model that the package does not take
        sized, free = _sized(manifest), [_free(variant) for variant in manifest["variants"]]
        self._open = any(dims is not None for dims in free)
        self._bounds = [_Bound(k, v, sized[k], free[k]) for k, v in enumerate(self.variants)]
        self.sizes = {} if free[0] is None else free[0].given  # of a package for any size, by dimension
        self.grows = free[0] is not None and free[0].grows  # it keeps a cache that grows from run to run
        self._input_dtypes = [(t, numpy_dtype(t.dtype)) for t in self.inputs]

    def _tensors(self, kind: str, variant: int) -> list[TensorInfo]:
        count = getattr(self._library, f"{kind}_count")(self._handle, variant)
        get = getattr(self._library, kind)
        tensors = [get(self._handle, variant, i).contents for i in range(count)]
        return [TensorInfo(_text(t.name), DTYPES[t.dtype - 1], tuple(t.shape[: t.rank])) for t in tensors]

    def run(self, inputs: Mapping[str, Array], out: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Computes the outputs. `out` may give arrays (C-contiguous, of the right dtype and shape, apart from the
        inputs) that some or all of them are written into. The variant is the one with the inputs' shapes. Where the
        shape of an output depends on data, that in the variant's `outputs` is the most that there can be, which `out`
        has to hold, and what is returned is the part that is there. A package for any size takes every shape within
        `sizes`; `out` has the shapes of the run, or has room for the largest. Memory of results that nobody holds any
        more is kept for later runs, until the model is closed."""
        arrays = self._arrays(inputs)
        bound, shapes = self._bound_to(arrays)
        self._acquire()
        try:
            if not self._handle:
                raise ModelError("the model is closed")
            results = bound.allocate() if out is None else bound.place(out, arrays, shapes is not None)
            for k, array in enumerate(arrays):
                bound.input_pointers[k] = _address(array)
            if shapes is None:
                status = self._library.run(self._handle, bound.index, bound.inputs_at, bound.outputs_at)
            else:
                given = (self._handle, bound.index, shapes, bound.inputs_at, bound.outputs_at)
                status = self._library.run_shaped(*given)
            if status:
                raise self._failure(status)
            for k in bound.sized if shapes is None else bound.cut:
                results[bound.outputs[k].name] = self._actual(bound, k, results[bound.outputs[k].name])
        finally:
            self._release()
        return results

    def _failure(self, status: int) -> ModelError:
        sentence = _text(self._library.last_error())
        if status == INTERRUPTED:
            signal.raise_signal(signal.SIGINT)  # which the poller has taken: its handler is called after all
        return Stopped(sentence) if status in (STOPPED, INTERRUPTED, LATE) else ModelError(sentence)

    def stop(self, stopped: bool = True) -> None:
        """From now on runs raise Stopped before their next step or iteration of a loop, also one that goes on in
        another thread; until `stopped` is False. May be called from a signal handler. Ctrl-C ends a run of the main
        thread by itself: the handler of SIGINT is called within a tenth of a second, and the step that runs."""
        with self._closing:
            self._has("stop")
            if self._handle:
                self._library.stop(self._handle, stopped)

    def time_limit(self, seconds: float | None) -> None:
        """From now on a run that lasts longer raises Stopped before its next step or iteration of a loop; None lets
        runs last."""
        self._has("time_limit")
        if seconds is not None and not 0 < seconds <= MOST_SECONDS:
            raise ModelError(f"the time limit is {seconds!r}; expected seconds above 0 to {MOST_SECONDS}, or None")
        self._call("time_limit", 0 if seconds is None else max(1, round(1e9 * seconds)))

    def seed(self, seed: int) -> None:
        """From now on the model draws the random numbers that it drew if it had just been opened with this seed."""
        self._has("seed")
        self._call("seed", _whole("seed", seed, 0, 2**64 - 1))

    def _has(self, function: str) -> None:
        if not getattr(self._library, function):
            raise ModelError(
                f"the package was compiled by an earlier modelc, and has no {function}(): compile the model again"
            )

    def _actual(self, bound: _Bound, output: int, array: Array) -> Array:
        """As much of an output as the last run made."""
        shape = (ctypes.c_int64 * (array.ndim + 1))()
        if self._library.output_shape(self._handle, bound.index, output, ctypes.addressof(shape)):
            raise ModelError(_text(self._library.last_error()))
        actual = shape[: array.ndim]
        if bound.free is not None:
            is_whole = array.shape == tuple(actual)
            return array if is_whole else array.reshape(-1)[: math.prod(actual)].reshape(actual)
        return array[tuple(slice(n) for n in actual)]

    def reset(self) -> None:
        """Makes what the model keeps between runs (compile --state) zeros, as it was when it was opened, and empties
        caches that grow."""
        self._call("reset")

    def run_anew(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """As run(), with caches that grow empty: what may be done again and again."""
        if self.grows:
            self.reset()
        return self.run(inputs)

    def profile(self, inputs: Mapping[str, Array], repeat: int = 10) -> list[StepProfile]:
        """Runs once to warm up and `repeat` times more, and says what each step of these took, in order. A cache that
        grows is empty before each."""
        self.run_anew(inputs)
        if self.grows:
            self.reset()
        index = self._bound_to(self._arrays(inputs))[0].index
        self.profile_start()
        for _ in range(repeat):
            self.run_anew(inputs)
        self.profile_stop()
        return self.profile_read(index)

    def profile_start(self) -> None:
        """From now on runs accumulate what each step takes, from zero on."""
        self._call("profile_start")

    def profile_stop(self) -> None:
        """Runs accumulate nothing any more; what they have can be read."""
        self._call("profile_stop")

    def profile_read(self, variant: int) -> list[StepProfile]:
        """What each of the variant's steps has taken since profile_start, in order."""
        steps, profile = [], _Profile()
        for step in range(self._call("step_count", variant)):
            self._call("profile_read", variant, step, ctypes.byref(profile))
            seconds = profile.nanoseconds * 1e-9
            steps.append(StepProfile(_text(profile.name), profile.calls, seconds, profile.flops, profile.bytes))
        return steps

    def watch(self, watcher: Callable[[int, bool, Frame], None] | None) -> None:
        """From now on runs call `watcher` with the step, whether it has run, and where data lies: before and after each
        step; None ends that."""

        def called(_: Any, variant: int, step: int, after: int, frame: Any) -> None:
            assert watcher is not None
            watcher(step, bool(after), frame.contents)

        self._watcher = _WATCHER() if watcher is None else _WATCHER(called)  # ctypes keeps no callback
        self._call("watch", self._watcher, None)

    def _call(self, name: str, *arguments: Any) -> int:
        with self._lock:
            if not self._handle:
                raise ModelError("the model is closed")
            return int(getattr(self._library, name)(self._handle, *arguments))

    def close(self) -> None:
        """Frees what the model holds; waits for a run that goes on in another thread. May be called twice."""
        with self._lock, self._closing:
            handle, self._handle = self._handle, _P()
            if handle:
                self._library.close(handle)
                for bound in self._bounds:
                    for output in bound.outputs:
                        output.kept.clear()

    def __repr__(self) -> str:
        if not self._handle:
            return f"Model({self.metadata.get('name')!r}, closed)" if hasattr(self, "metadata") else "Model(closed)"
        variants = "; ".join(self._boundary(*pair) for pair in zip(self.variants, self._bounds, strict=True))
        return f"Model({self.metadata.get('name')!r}: {variants}; {self.threads} thread(s))"

    @property
    def boundaries(self) -> list[tuple[list[TensorInfo], list[TensorInfo]]]:
        """The inputs and outputs of each variant; extents that depend on free sizes are texts."""
        pairs = zip(self.variants, self._bounds, strict=True)
        return [(v.inputs, v.outputs) if b.free is None else b.free.shown(v) for v, b in pairs]

    def _boundary(self, variant: Variant, bound: _Bound) -> str:
        if bound.free is None:
            return boundary(*variant)
        given = ", ".join(f"{name} {range_text(numbers)}" for name, numbers in bound.free.ranges.items())
        return f"{boundary(*bound.free.shown(variant))}; {given}"

    def _repr_html_(self) -> str:
        """The kernels, with a bar for what each took since profile_start(), or for its arithmetic."""
        if not self._handle:
            return page(repr(self))
        steps = self.profile_read(0)
        timed = any(step.calls for step in steps)
        rows = [
            (s.name, f"{1e6 * s.seconds / max(s.calls, 1):.1f}" if timed else "", f"{1e-6 * s.flops:.3g}")
            for s in steps
        ]
        bars = [step.seconds if timed else step.flops for step in steps]
        return page(repr(self), table(("kernel", "us", "MFLOP"), rows, bars))

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _arrays(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The inputs in the package's order, contiguous, names and dtypes checked."""
        if len(inputs) != len(self.inputs):
            raise ModelError(self._refuse_names(inputs))
        arrays = []
        for tensor, dtype in self._input_dtypes:
            if tensor.name not in inputs:
                raise ModelError(self._refuse_names(inputs))
            array = np.asarray(inputs[tensor.name])
            if array.dtype != dtype and array.dtype != bits_dtype(tensor.dtype):
                raise ModelError(f"input '{tensor.name}' is {array.dtype.name}; the model takes {tensor.dtype}")
            arrays.append(np.asarray(array, order="C"))
        return arrays

    def _bound_to(self, arrays: Sequence[Array]) -> tuple[_Bound, ctypes.Array[Any] | None]:
        """The variant with the arrays' shapes; or one that takes them, and these shapes."""
        return self._fitting([array.shape for array in arrays])

    def _fitting(self, shapes: Sequence[tuple[int, ...]]) -> tuple[_Bound, ctypes.Array[Any] | None]:
        for bound in self._bounds:
            if bound.shapes == shapes and not (bound.free and bound.free.grows):
                return bound, None
        if not self._open or any(len(s) != len(t.shape) for s, t in zip(shapes, self.inputs, strict=True)):
            raise ModelError(self._refuse_shapes(shapes))
        extents = [(ctypes.c_int64 * (len(shape) + 1))(*shape) for shape in shapes]
        pointer = ctypes.POINTER(ctypes.c_int64)
        table, variant = (pointer * len(extents))(*(ctypes.cast(e, pointer) for e in extents)), ctypes.c_int32()
        with self._lock:
            if not self._handle:
                raise ModelError("the model is closed")
            if self._library.fit(self._handle, table, ctypes.byref(variant)):
                raise ModelError(_text(self._library.last_error()))
        return self._bounds[variant.value], table

    def fits(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether the package takes inputs of these shapes, by name."""
        if shapes.keys() != {tensor.name for tensor in self.inputs}:
            return False
        try:
            self._fitting([tuple(shapes[tensor.name]) for tensor in self.inputs])
        except ModelError:
            return False
        return True

    def _refuse_names(self, inputs: Mapping[str, Array]) -> str:
        wanted, given = [t.name for t in self.inputs], list(inputs)
        return f"the model takes the inputs {_names(wanted)}; it was given {_names(given)}"

    def _refuse_shapes(self, shapes: Sequence[tuple[int, ...]]) -> str:
        given = ", ".join(f"{t.name} {list(shape)}" for t, shape in zip(self.inputs, shapes, strict=True))
        compiled_for = "; ".join(", ".join(f"{t.name} {list(t.shape)}" for t in v.inputs) for v in self.variants)
        return f"the model was given {given}; it was compiled for {compiled_for}"


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array that begins at a cache line: rows that lie across lines are read and written twice as slowly."""
    memory = np.empty(math.prod(shape) * dtype.itemsize + LINE_BYTES, np.uint8)
    array: Array = np.ndarray(shape, dtype, memory, -_address(memory) % LINE_BYTES)
    return array


def _address(array: Array) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only or empty: the way that is always right takes three times as long
        return int(array.__array_interface__["data"][0])


_ALONE = aligned((0,), np.dtype(np.uint8))
_NOBODY = sys.getrefcount(_ALONE.base)  # besides the array itself holds its memory


def _poller() -> Any:
    """What a run asks whether there was a SIGINT. It executes nothing of Python, so that the handler does not raise
    within it, and says yes in the main thread alone. None where Python is not CPython."""
    interface = getattr(ctypes, "pythonapi", None)
    return interface and _POLLER(interface.PyOS_InterruptOccurred)


class _Output:
    """An output, and its latest results: their memory is used again when nobody holds them any more, as from the system
    it would come page by page, at every run. What is given out are views, for which numpy counts references."""

    def __init__(self, info: TensorInfo) -> None:
        self.name, self.shape, self.dtype = info.name, info.shape, numpy_dtype(info.dtype)
        self.kept: list[tuple[Array, int]] = []  # with their addresses

    def idle(self) -> tuple[Array, int]:
        for kept in self.kept:
            if sys.getrefcount(kept[0].base) == _NOBODY:
                return kept
        array = aligned(self.shape, self.dtype)
        self.kept = [(array, _address(array)), *self.kept[: KEPT_OUTPUTS - 1]]
        return self.kept[0]


class _Bound:
    """A variant with what a call needs, made once."""

    def __init__(self, index: int, variant: Variant, sized: tuple[int, ...], free: _Free | None) -> None:
        self.index, self.free = index, free
        self.sized = sized  # outputs whose shape depends on data
        self.cut = tuple(sorted({*sized, *(() if free is None else free.outputs)}))  # or on free sizes
        self.shapes = [info.shape for info in variant.inputs]
        self.outputs = [_Output(info) for info in variant.outputs]
        self.input_pointers = (_P * len(variant.inputs))()
        self.output_pointers = (_P * len(variant.outputs))()
        self.inputs_at, self.outputs_at = map(ctypes.addressof, (self.input_pointers, self.output_pointers))

    def allocate(self) -> dict[str, Array]:
        results = {}
        for k, output in enumerate(self.outputs):
            array, self.output_pointers[k] = output.idle()
            results[output.name] = array.view()
        return results

    def place(self, out: Mapping[str, Array], inputs: Sequence[Array], shaped: bool = False) -> dict[str, Array]:
        names = [output.name for output in self.outputs]
        unknown = [name for name in out if name not in names]
        if unknown:
            raise ModelError(f"'out' names {_names(unknown)}; the model's outputs are {_names(names)}")
        results: dict[str, Array] = {}
        own = self.free.shapes(inputs) if self.free is not None and shaped else {}
        for k, output in enumerate(self.outputs):
            name, dtype = output.name, output.dtype
            array = out.get(name)
            shape = own.get(k, output.shape)
            if array is None:
                array = aligned(shape, dtype)
            elif array.shape not in (shape, output.shape) or array.dtype not in (dtype, bits_dtype(dtype.name)):
                description = f"{array.dtype.name} {list(array.shape)}"
                raise ModelError(f"'out' has {description} for output '{name}', which is {dtype.name} {list(shape)}")
            elif not (array.flags.c_contiguous and array.flags.writeable):
                raise ModelError(f"'out' has a read-only or non-contiguous array for output '{name}'")
            elif any(np.may_share_memory(array, other) for other in (*inputs, *results.values())):
                raise ModelError(f"'out' has an array for output '{name}' that overlaps another input or output")
            results[name] = array
            self.output_pointers[k] = _address(array)
        return results


def _variants_of(manifest: dict[str, Any]) -> list[Variant] | None:
    """The inputs and outputs that the manifest tells of; None if it is damaged there."""

    def tensors(given: Any) -> list[TensorInfo]:
        return [TensorInfo(t["name"], t["dtype"], tuple(t["shape"])) for t in given]

    try:
        return [Variant(tensors(v["inputs"]), tensors(v["outputs"])) for v in manifest["variants"]]
    except (KeyError, TypeError, IndexError):
        return None


def _constants(manifest: dict[str, Any]) -> dict[str, Array]:
    try:
        tensors = [(constant["tensor"], constant["data"]) for constant in manifest.get("constants", ())]
        return {
            tensor["name"]: np.frombuffer(base64.b64decode(data), numpy_dtype(tensor["dtype"])).reshape(tensor["shape"])
            for tensor, data in tensors
        }
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{MANIFEST} is damaged: its constants cannot be read; {AGAIN}") from None


def _sized(manifest: dict[str, Any]) -> list[tuple[int, ...]]:
    """Of every variant the outputs whose shape depends on data."""
    sized = []
    for variant in manifest["variants"]:
        sizes, count = variant.get("sizes", []), len(variant["outputs"])
        try:
            outputs = {extent["output"] for extent in sizes}
        except (KeyError, TypeError):
            outputs = {-1}
        if not all(type(k) is int and 0 <= k < count for k in outputs):
            raise ModelError(f"{MANIFEST} is damaged: it has sizes of outputs that are not there; {AGAIN}")
        sized.append(tuple(sorted(outputs)))
    return sized


class _Free(NamedTuple):
    """The free sizes of a variant: what each of its dimensions may be, `places` where an input has it (LENGTH: it is
    the length of a cache; FOUND: a run finds it), and its unit; extents of `inputs` and of `outputs`, by number, which
    may be expressions of the sizes."""

    ranges: dict[str, range]
    places: dict[str, tuple[int, int, int]]
    inputs: dict[int, list[Any]]
    outputs: dict[int, list[Any]]

    def shown(self, variant: Variant) -> tuple[list[TensorInfo], list[TensorInfo]]:
        """The inputs and outputs with their extents in terms of the dimensions."""
        units = {name: unit for name, (_, _, unit) in self.places.items()}

        def tensors(most: Sequence[TensorInfo], extents: dict[int, list[Any]]) -> list[TensorInfo]:
            return [t._replace(shape=extents_shown(extents.get(k, t.shape), units)) for k, t in enumerate(most)]

        return tensors(variant.inputs, self.inputs), tensors(variant.outputs, self.outputs)

    @property
    def given(self) -> dict[str, range]:
        """What dimensions may be that a run does not find."""
        return {name: numbers for name, numbers in self.ranges.items() if self.places[name][0] != FOUND}

    @property
    def grows(self) -> bool:
        """Whether there is a cache that grows."""
        return any(k == LENGTH for k, _, _ in self.places.values())

    def shapes(self, inputs: Sequence[Array]) -> dict[int, tuple[int, ...]]:
        """The shapes of outputs in a run on these inputs, which fit: the most that it may find."""
        if self.grows:  # how long a cache is, the library knows
            return {}
        run = {
            name: self.ranges[name][-1] if k == FOUND else inputs[k].shape[axis] // unit
            for name, (k, axis, unit) in self.places.items()
        }
        return {k: tuple(_extent(n, run) for n in extents) for k, extents in self.outputs.items()}


def _free(variant: Mapping[str, Any]) -> _Free | None:
    """What is free in a variant of the manifest; None where nothing is."""
    given = variant.get("free", [])
    if not given:
        return None
    try:
        ranges = {s["name"]: range(s["least"] * s["unit"], s["most"] * s["unit"] + 1, s["unit"]) for s in given}
        places = {s["name"]: (s["input"], s["axis"], s["unit"]) for s in given}
        sides = (variant["inputs"], variant["outputs"])
        inputs, outputs = ({k: t["extents"] for k, t in enumerate(side) if "extents" in t} for side in sides)
        free = _Free(ranges, places, inputs, outputs)
        largest = {name: numbers[-1] // numbers.step for name, numbers in ranges.items()}
        for side, extents in zip(sides, (inputs, outputs), strict=True):
            if any([_extent(n, largest) for n in extents[k]] != side[k]["shape"] for k in extents):
                raise ValueError("shapes are not the most")
        if any(axis >= len(inputs[k]) for k, axis, _ in places.values() if k >= 0):
            raise ValueError("an axis is not there")
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ModelError(f"{MANIFEST} is damaged: its free sizes do not fit ({error}); {AGAIN}") from None
    return free


MOST_EXTENT_TEXT = 1000  # characters of an extent, as sizes.py reads them
_COMPUTED: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _extent(extent: Any, run: Mapping[str, int]) -> int:
    """What an extent of the manifest is in a run. Raises ValueError."""
    if type(extent) is int:
        return extent
    if not isinstance(extent, str) or len(extent) > MOST_EXTENT_TEXT:
        raise ValueError("an extent is neither a number nor an expression")
    try:
        return _value(ast.parse(extent, mode="eval").body, run)
    except SyntaxError:
        raise ValueError(f"{extent!r} is no expression") from None


def _value(node: ast.expr, run: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in run:
        return run[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        return _COMPUTED[type(node.op)](_value(node.left, run), _value(node.right, run))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, run)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        parts = [_value(part, run) for part in node.args]
        return min(parts) if node.func.id == "min" else max(parts)
    raise ValueError("an extent is no expression of sizes")


def _open_library(path: str, file: LibraryFile) -> Library:
    file_name, header = os.path.join(path, file.name), file.header
    machine = struct.unpack_from("<H", header, 18)[0] if header[:4] == b"\x7fELF" and len(header) == 20 else None
    built_for, here = ELF_MACHINES.get(machine or 0, "an unknown machine"), platform.machine()
    bits = 32 if header[4:5] == b"\1" else 64
    # A 32-bit Python on a 64-bit ARM kernel calls its machine aarch64.
    if bits != 8 * struct.calcsize("P") or not (here.startswith(built_for) or (built_for, here) == ("arm", "aarch64")):
        raise ModelError(f"{file_name} was built for {built_for}; this is {here}")
    # The dynamic linker takes an equal path for the same library, even when a new package has replaced the old one
    # there while it was loaded. So the inode is spelt into the path: "a/./b" for a one, "a//b" for a zero.
    spelling = "".join("./" if bit == "1" else "/" for bit in f"{file.inode:b}")
    try:
        return Library(ctypes.CDLL(os.path.abspath(path) + "/" + spelling + file.name), file.prefix)
    except (OSError, AttributeError) as error:
        raise ModelError(f"cannot load {file_name}: {error}") from None


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    bits = bits_dtype(dtype)
    try:
        return bits if bits.name == dtype else np.dtype(getattr(importlib.import_module("ml_dtypes"), dtype))
    except (ImportError, AttributeError):
        return bits


def bits_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype("uint16" if dtype == "bfloat16" else "uint8" if dtype in _NARROW else dtype)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def _whole(name: str, given: Any, least: int, most: int) -> int:
    """An argument that ctypes takes, which would say nothing of numbers modulo 2^n."""
    number = operator.index(given) if hasattr(given, "__index__") and not isinstance(given, bool) else None
    if number is None or not least <= number <= most:
        raise ModelError(f"{name} is {repr(given)[:80]}; expected a whole number from {least} to {most}")
    return number


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
