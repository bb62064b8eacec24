"""Loads and runs a compiled model. Standard library and numpy alone; every package has it in one file.

    import loader                       # or: from modelc import runtime
    with loader.load("NAME.modelc") as model:
        outputs = model.run({"x": x})

Loading a package executes the library in it: load only packages whose origin you trust.
"""

from __future__ import annotations

import base64
import ctypes
import json
import math
import operator
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from modelc.runtime.bound import Bound
from modelc.runtime.files import AGAIN, MANIFEST, ModelError, Stopped, checked_files, folder_of
from modelc.runtime.free import free_of, outputs_of_data
from modelc.runtime.library import (
    INTERRUPTED,
    LATE,
    STOPPED,
    WATCHER,
    Frame,
    Options,
    Profile,
    open_library,
    poller,
    text_of,
)
from modelc.runtime.shown import boundary, names_shown, page, range_text, table
from modelc.runtime.tensors import DTYPES, Array, TensorInfo, Variant, address_of, bits_dtype, numpy_dtype

MOST_THREADS = 1024  # of the library, too
MOST_SECONDS = 10**9  # of a time limit, whose nanoseconds fit 64 bits
MOST_FITTED = 64  # entries in a handle's cache of shapes that fit


class StepProfile(NamedTuple):
    """One kernel's share of the time: `seconds` over all `calls`; flops and bytes of one call."""

    name: str
    calls: int
    seconds: float
    flops: float
    bytes: float


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
        self._handle = ctypes.c_void_p()
        self._bounds: list[Bound] = []
        self._fitted: dict[tuple[tuple[int, ...], ...], tuple[Bound, ctypes.Array[Any]]] = {}
        self._watcher: Any = None
        self._lock = threading.Lock()
        self._closing = threading.RLock()  # held where the handle is freed, or used beside a run
        self._acquire, self._release = self._lock.acquire, self._lock.release  # half the time of a with
        threads = 0 if threads is None else _whole("threads", threads, 0, MOST_THREADS)
        seed = _whole("seed", seed, 0, 2**64 - 1)
        path = folder_of(path)
        manifest, library_file = checked_files(path, check)
        self._library = library = open_library(path, library_file)
        options = Options(ctypes.sizeof(Options), threads, 0, seed)  # the checksums have been compared
        if library.open(os.fsencode(path), ctypes.byref(options), ctypes.byref(self._handle)):
            raise ModelError(text_of(library.last_error()))
        self._poller = poller()  # ctypes keeps no callback
        if library.poll and self._poller:
            library.poll(self._handle, self._poller, None)
        self.threads: int = library.thread_count(self._handle)
        self.metadata: dict[str, Any] = json.loads(text_of(library.metadata(self._handle)))
        count = library.variant_count(self._handle)
        self.variants = [Variant(self._tensors("input", v), self._tensors("output", v)) for v in range(count)]
        if _variants_of(manifest) != self.variants:
            raise ModelError(f"{path}/{MANIFEST} describes other inputs or outputs than {library_file.name}: {AGAIN}")
        self.inputs, self.outputs = self.variants[0]  # of the first variant
        self.constants = _constants(manifest)  # inputs of the ONNX model that the package does not take
        sized, free = outputs_of_data(manifest), [free_of(variant) for variant in manifest["variants"]]
        self._open = any(dims is not None for dims in free)
        self._bounds = [Bound(k, v, sized[k], free[k]) for k, v in enumerate(self.variants)]
        self.sizes = {} if free[0] is None else free[0].given  # of a package for any size, by dimension
        self.grows = free[0] is not None and free[0].grows  # it keeps a cache that grows from run to run
        self._input_dtypes = [(t, numpy_dtype(t.dtype)) for t in self.inputs]

    def _tensors(self, kind: str, variant: int) -> list[TensorInfo]:
        count = getattr(self._library, f"{kind}_count")(self._handle, variant)
        get = getattr(self._library, kind)
        tensors = [get(self._handle, variant, i).contents for i in range(count)]
        return [TensorInfo(text_of(t.name), DTYPES[t.dtype - 1], tuple(t.shape[: t.rank])) for t in tensors]

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
                bound.input_pointers[k] = address_of(array)
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
        sentence = text_of(self._library.last_error())
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

    def _actual(self, bound: Bound, output: int, array: Array) -> Array:
        """As much of an output as the last run made."""
        shape = (ctypes.c_int64 * (array.ndim + 1))()
        if self._library.output_shape(self._handle, bound.index, output, ctypes.addressof(shape)):
            raise ModelError(text_of(self._library.last_error()))
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
        steps, profile = [], Profile()
        for step in range(self._call("step_count", variant)):
            self._call("profile_read", variant, step, ctypes.byref(profile))
            seconds = profile.nanoseconds * 1e-9
            steps.append(StepProfile(text_of(profile.name), profile.calls, seconds, profile.flops, profile.bytes))
        return steps

    def watch(self, watcher: Callable[[int, bool, Frame], None] | None) -> None:
        """From now on runs call `watcher` with the step, whether it has run, and where data lies: before and after each
        step; None ends that."""

        def called(_: Any, variant: int, step: int, after: int, frame: Any) -> None:
            assert watcher is not None
            watcher(step, bool(after), frame.contents)

        self._watcher = WATCHER() if watcher is None else WATCHER(called)  # ctypes keeps no callback
        self._call("watch", self._watcher, None)

    def _call(self, name: str, *arguments: Any) -> int:
        with self._lock:
            if not self._handle:
                raise ModelError("the model is closed")
            return int(getattr(self._library, name)(self._handle, *arguments))

    def close(self) -> None:
        """Frees what the model holds; waits for a run that goes on in another thread. May be called twice."""
        with self._lock, self._closing:
            handle, self._handle = self._handle, ctypes.c_void_p()
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

    def _boundary(self, variant: Variant, bound: Bound) -> str:
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

    def _bound_to(self, arrays: Sequence[Array]) -> tuple[Bound, ctypes.Array[Any] | None]:
        """The variant with the arrays' shapes; or one that takes them, and these shapes."""
        return self._fitting([array.shape for array in arrays])

    def _fitting(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Bound, ctypes.Array[Any] | None]:
        for bound in self._bounds:
            if bound.shapes == shapes and not (bound.free and bound.free.grows):
                return bound, None
        key = tuple(shapes)
        fitted = self._fitted.get(key)
        if fitted is None:
            fitted = self._fitted_anew(key)
            if not self.grows:  # else it depends on what the cache holds
                if len(self._fitted) >= MOST_FITTED:
                    self._fitted.clear()
                self._fitted[key] = fitted
        return fitted

    def _fitted_anew(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Bound, ctypes.Array[Any]]:
        if not self._open or any(len(s) != len(t.shape) for s, t in zip(shapes, self.inputs, strict=True)):
            raise ModelError(self._refuse_shapes(shapes))
        extents = [(ctypes.c_int64 * (len(shape) + 1))(*shape) for shape in shapes]
        pointer = ctypes.POINTER(ctypes.c_int64)
        table, variant = (pointer * len(extents))(*(ctypes.cast(e, pointer) for e in extents)), ctypes.c_int32()
        with self._lock:
            if not self._handle:
                raise ModelError("the model is closed")
            if self._library.fit(self._handle, table, ctypes.byref(variant)):
                raise ModelError(text_of(self._library.last_error()))
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
        return f"the model takes the inputs {names_shown(wanted)}; it was given {names_shown(given)}"

    def _refuse_shapes(self, shapes: Sequence[tuple[int, ...]]) -> str:
        given = ", ".join(f"{t.name} {list(shape)}" for t, shape in zip(self.inputs, shapes, strict=True))
        compiled_for = "; ".join(", ".join(f"{t.name} {list(t.shape)}" for t in v.inputs) for v in self.variants)
        return f"the model was given {given}; it was compiled for {compiled_for}"


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


def _whole(name: str, given: Any, least: int, most: int) -> int:
    """An argument that ctypes takes, which would say nothing of numbers modulo 2^n."""
    number = operator.index(given) if hasattr(given, "__index__") and not isinstance(given, bool) else None
    if number is None or not least <= number <= most:
        raise ModelError(f"{name} is {repr(given)[:80]}; expected a whole number from {least} to {most}")
    return number
