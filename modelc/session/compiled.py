"""The Source of a session on an ONNX model: a package for any size, and where there is none, or it does not take a
size, one for each set of shapes that its inputs come in."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.cache.packages import discard
from modelc.errors import ModelcError
from modelc.frontend.steering.declared import DeclaredTensor, initialiser_values, interface_of
from modelc.runtime import Model, ModelError, load
from modelc.runtime.refusals import Fail, InvalidArgument, InvalidProtobuf, NoSuchFile
from modelc.runtime.session import Declared
from modelc.runtime.values import ModelMetadata
from modelc.session.packages import SourceModel, package_for, package_of_any_size

Array = NDArray[Any]
Key = tuple[tuple[tuple[int, ...], bytes], ...]
PackageOf = Callable[[SourceModel, Mapping[str, tuple[int, ...]], Mapping[str, Array]], Path | None]
MOST_OPEN = 16  # packages of a session; beyond it, what was not run for longest is closed
_compiling = threading.Lock()  # one thread of a process at a time


class Compiled:
    """A model whose packages are compiled when its inputs' shapes are known: at once, where the model fixes them all,
    and else at the first run on each set of them. `sizes` are those of free dimensions by name. Raises NoSuchFile,
    InvalidProtobuf, InvalidArgument; Fail where the model cannot be compiled."""

    def __init__(self, given: Path | bytes, threads: int | None, sizes: Mapping[str, int]) -> None:
        self._model, self._threads = SourceModel(given), threads
        _check_file(given)
        with _refusing(InvalidProtobuf), self._model.file() as path:
            interface = interface_of(path)
        self.inputs, self.outputs, self.initialisers = (
            [_declared(tensor, sizes) for tensor in tensors]
            for tensors in (interface.inputs, interface.outputs, interface.initialisers)
        )
        self.metadata = ModelMetadata.of(asdict(interface.origin))
        self._steering = frozenset(interface.steering)
        self._open: OrderedDict[Key, Model] = OrderedDict()
        self._general: dict[tuple[tuple[str, bytes], ...], Model | None] = {}  # by the constants
        self._lock = threading.Lock()
        if not self._steering and all(_is_fixed(declared) for declared in self.inputs):
            self._opened(tuple((_fixed(declared), b"") for declared in self.inputs), {})
        else:
            with _refusing(Fail):
                self._model = self._model.held()

    @cached_property
    def constants(self) -> Mapping[str, Array]:
        with _refusing(Fail), self._model.file() as path:
            return initialiser_values(path)

    def model_for(self, arrays: Mapping[str, Array]) -> tuple[Model, Mapping[str, Array]]:
        steering = self._steering
        key = tuple(
            (arrays[d.name].shape, arrays[d.name].tobytes() if d.name in steering else b"") for d in self.inputs
        )
        taken = {name: array for name, array in arrays.items() if name not in steering} if steering else arrays
        model = self._latest(key)
        return model or self._opened(key, {name: arrays[name] for name in steering}), taken

    def opened(self) -> Iterable[Model]:
        with self._lock:
            return tuple(self._open.values())

    def close(self) -> None:
        for model in self.opened():
            model.close()
        self._open.clear()

    def _latest(self, key: Key) -> Model | None:
        """What is open for this key, which is now what was run last."""
        with self._lock:
            model = self._open.get(key)
            if model is not None:
                self._open.move_to_end(key)
            return model

    def _opened(self, key: Key, constants: Mapping[str, Array]) -> Model:
        shapes = {d.name: shape for d, (shape, _) in zip(self.inputs, key, strict=True) if d.name not in constants}
        with _compiling:  # while other threads run what is open
            model = self._latest(key)
            if model is None:
                model = self._loaded(shapes, constants)
                with self._lock:
                    self._open[key] = model
                    while len(self._open) > MOST_OPEN:  # it is closed when no thread runs it any more
                        self._open.popitem(last=False)
            return model

    def _loaded(self, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array]) -> Model:
        with _refusing(Fail):
            general = self._of_any_size(shapes, constants)
            if general is not None and general.fits(shapes):
                return general
            model = self._from_cache(package_for, shapes, constants)
            assert model is not None
            return model

    def _from_cache(
        self, package: PackageOf, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array]
    ) -> Model | None:
        """An open package; one that was damaged in the cache is made again."""
        place = package(self._model, shapes, constants)
        if place is None:
            return None
        try:
            return load(place, threads=self._threads)
        except ModelError:
            discard(place)
            place = package(self._model, shapes, constants)
            return None if place is None else load(place, threads=self._threads)

    def _of_any_size(self, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array]) -> Model | None:
        """The package whose sizes are open, where there is one; a session opens it once."""
        if all(_is_fixed(declared) for declared in self.inputs if declared.name not in constants):
            return None
        key = tuple((name, array.tobytes()) for name, array in constants.items())
        if key not in self._general:
            self._general[key] = self._from_cache(package_of_any_size, shapes, constants)
        return self._general[key]


@contextmanager
def _refusing(kind: type[ModelError]) -> Iterator[None]:
    """Makes errors of modelc's of a kind that programs for ONNX Runtime catch."""
    try:
        yield
    except ModelcError as error:
        raise kind(str(error)) from error


def _check_file(given: Path | bytes) -> None:
    if isinstance(given, bytes):
        if not given:
            raise InvalidArgument("the model has no bytes; expected those of an ONNX file")
    elif not given.exists():
        raise NoSuchFile(f"{given} does not exist; expected an ONNX file or a package")
    elif given.is_file() and not given.stat().st_size:
        raise InvalidArgument(f"{given} is empty; expected an ONNX file")


def _declared(tensor: DeclaredTensor, sizes: Mapping[str, int]) -> Declared:
    dims = tensor.dims
    if dims is not None:
        dims = tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
    return Declared(tensor.name, tensor.dtype, dims)


def _is_fixed(declared: Declared) -> bool:
    return declared.dims is not None and all(isinstance(dim, int) for dim in declared.dims)


def _fixed(declared: Declared) -> tuple[int, ...]:
    return tuple(dim for dim in declared.dims or () if isinstance(dim, int))
