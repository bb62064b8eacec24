"""What goes into a session and comes out of it: tensors, what is said of them, and where they are bound."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelc.runtime.refusals import InvalidArgument, Unusable
from modelc.runtime.tensors import numpy_dtype

if TYPE_CHECKING:
    from modelc.runtime.session import InferenceSession

Array = NDArray[Any]
TYPES = {"float32": "float", "float64": "double"}  # dtypes that ONNX calls otherwise
_ONNX = ("float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "", "bool", "float16", "float64")
NUMBERS = {dtype: number for number, dtype in enumerate(_ONNX, 1) if dtype}  # of ONNX's TensorProto.DataType
NUMBERS |= {"uint32": 12, "uint64": 13, "bfloat16": 16}


class NodeArg(NamedTuple):
    """An input or an output. A dimension that is not fixed is its name; None where it has none, and where the variants
    of a package differ in it."""

    name: str
    type: str
    shape: list[int | str | None]


class ModelMetadata(NamedTuple):
    """What a model says of itself."""

    graph_name: str = ""
    producer_name: str = ""
    domain: str = ""
    version: int = 0
    description: str = ""
    graph_description: str = ""
    custom_metadata_map: Mapping[str, str] = {}

    @classmethod
    def of(cls, origin: Mapping[str, Any] | None) -> ModelMetadata:
        """Of a package's metadata, or a model's."""
        said = origin or {}
        fields = {name: said[name] for name in cls._fields if name in said}
        return cls(**fields, custom_metadata_map=dict(said.get("metadata", {})))


class OrtDevice(NamedTuple):
    """Where a tensor lies: the CPU's memory."""

    kind: str = "cpu"
    number: int = 0

    @staticmethod
    def make(device_type: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        check_device(device_type)
        return OrtDevice(device_type, device_id)

    def device_type(self) -> str:
        return self.kind

    def device_id(self) -> int:
        return self.number


def check_device(device_type: str) -> None:
    """Raises InvalidArgument for memory that packages do not read."""
    if device_type.lower() != "cpu":
        raise InvalidArgument(f"a tensor was to lie on the device {device_type!r}; expected 'cpu': packages run there")


def type_of(dtype: str) -> str:
    """A tensor's type, as ONNX Runtime says it."""
    return f"tensor({TYPES.get(dtype, dtype)})"


class OrtValue:
    """A tensor in the memory of a NumPy array, which it shares."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        check_device(device_type)
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "OSU":
            raise Unusable(f"an OrtValue is made of a NumPy array of numbers, and this is {_described(numpy_obj)}")
        return OrtValue(np.asarray(numpy_obj, order="C"))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        check_device(device_type)
        return OrtValue(np.zeros(tuple(shape), element_dtype(element_type)))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> OrtValue:
        array = np.from_dlpack(data)
        return OrtValue(array.view(np.bool_) if is_bool_tensor else array)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return self._array.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._array if dtype is None else self._array.astype(dtype)

    def numpy(self) -> Array:
        return self._array

    def update_inplace(self, array: Array) -> None:
        """Copies an array of the same shape and dtype into this one."""
        if array.shape != self._array.shape or array.dtype != self._array.dtype:
            raise InvalidArgument(
                f"an OrtValue of {_described(self._array)} was to be updated by {_described(array)}; expected the same"
            )
        self._array[...] = array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return type_of(self._array.dtype.name)

    def element_type(self) -> int:
        """The number of ONNX's TensorProto.DataType."""
        return NUMBERS.get(self._array.dtype.name, 0)

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        return int(self._array.nbytes)

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return False


def element_dtype(element_type: Any) -> np.dtype[Any]:
    """Of NumPy's type, or the number of ONNX's."""
    if isinstance(element_type, int):
        names = [dtype for dtype, number in NUMBERS.items() if number == element_type]
        if not names:
            raise InvalidArgument(f"the element type {element_type} has no dtype in NumPy; expected one of {NUMBERS}")
        return numpy_dtype(names[0])
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype


def as_array(name: str, value: Any, dtype: str) -> Array:
    """What an input was given, as an array; lists and Python's numbers in the input's dtype. Without a copy where there
    is an array, or another library's with DLPack's protocol. Raises Unusable."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
    if isinstance(value, OrtValue):
        return value.numpy()
    if isinstance(value, list | tuple | bool | int | float | np.generic):
        return _of_numbers(name, value, dtype)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    raise Unusable(f"input '{name}' is {_described(value)}; expected an array of {dtype}, or a list of numbers")


def _of_numbers(name: str, value: Any, dtype: str) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    wanted = numpy_dtype(dtype)
    if array.dtype.kind not in "biuf" or not (
        array.size == 0
        or array.dtype == wanted
        or np.can_cast(array.dtype, wanted, "same_kind")
        or _fits(array, wanted)
    ):
        raise Unusable(
            f"input '{name}' is {str(value)[:80]}; expected numbers that {dtype} can represent, in equal rows"
        )
    return array.astype(wanted)


def _fits(array: Array, wanted: np.dtype[Any]) -> bool:
    """Whether whole numbers lie in the range of an unsigned dtype."""
    if array.dtype.kind not in "iu" or wanted.kind not in "iu":
        return False
    limits = np.iinfo(wanted)
    return bool(limits.min <= array.min() and array.max() <= limits.max)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name} {list(value.shape)}"
    return f"of type {type(value).__name__}"


class IOBinding:
    """Tensors that a session reads and writes."""

    def __init__(self, session: InferenceSession) -> None:
        self._dtypes = session.input_dtypes
        self.inputs: dict[str, Array] = {}
        self.outputs: dict[str, Array | None] = {}  # None: the session allocates it
        self.results: list[Array] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        if name not in self._dtypes:
            raise Unusable(f"there is no input {name!r} to bind; the model's inputs are {', '.join(self._dtypes)}")
        self.inputs[name] = as_array(name, arr_on_cpu, self._dtypes[name])

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """`buffer_ptr` is the address of the numbers, which lie there as long as the binding is run."""
        check_device(device_type)
        self.bind_cpu_input(name, _at(buffer_ptr, shape, element_type))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self.bind_cpu_input(name, ortvalue.numpy())

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """The output is written to the address `buffer_ptr`; without one, the session allocates it."""
        check_device(device_type)
        self.outputs[name] = None if buffer_ptr is None else _at(buffer_ptr, shape or (), element_type)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self.outputs[name] = ortvalue.numpy()

    def get_outputs(self) -> list[OrtValue]:
        return [OrtValue(array) for array in self.results]

    def copy_outputs_to_cpu(self) -> list[Array]:
        return self.results

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()
        self.results = []

    def synchronize_inputs(self) -> None:
        """Nothing is to be waited for on a CPU."""

    def synchronize_outputs(self) -> None:
        """Likewise."""


def _at(address: int, shape: Sequence[int], element_type: Any) -> Array:
    """The numbers at an address."""
    dtype = element_dtype(element_type)
    memory = (ctypes.c_uint8 * (math.prod(shape) * dtype.itemsize)).from_address(address)
    array: Array = np.ndarray(tuple(shape), dtype, memory)  # type: ignore[arg-type]
    return array
