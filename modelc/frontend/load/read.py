"""Reading an ONNX file: the protobuf, its versions, and the data of its tensors, wherever they are stored."""

from __future__ import annotations

from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from stat import S_ISDIR, S_ISREG
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from modelc.errors import ModelError
from modelc.frontend.building.functions import operator_sets
from modelc.frontend.building.limits import LARGEST_DENSE, LARGEST_FILE, check_shape
from modelc.frontend.load.check import check_model
from modelc.ir.expr import DTYPES, NARROW, NARROW_INTEGERS

Array = NDArray[Any]
EXTERNAL_KEYS = {"location", "offset", "length", "checksum"}
SHOWN = 80  # characters of a name in a file
ELEMENT_TYPES = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
ELEMENT_TYPES |= {helper.np_dtype_to_tensor_dtype(DTYPES[name]): name for name in NARROW}  # as NumPy says it
ELEMENT_TYPES |= {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64"}


def shown(text: str) -> str:
    """A name out of a file, quoted, and not all of it if it is very long."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")


def read_model(path: str | Path) -> onnx.ModelProto:
    """The model in the file, without external data. Raises ModelError for what is not a model of a known version."""
    path = Path(path)
    check_file(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    if not content:
        raise ModelError(f"{path} is empty; expected an ONNX file")
    if content.startswith(b"version https://git-lfs"):
        raise ModelError(f"{path} is a Git LFS pointer, not the model itself; fetch the model with `git lfs pull`")
    return parse_model(path, content)


def parse_model(path: Path, content: bytes) -> onnx.ModelProto:
    """The model that the content of the file `path` says, or as much of it as is looked at. Raises ModelError."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        raise ModelError(f"{path} is not an ONNX file, or it is truncated: its protobuf cannot be read") from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError(f"{path} is not an ONNX model: it holds no graph")
    _check_versions(path, model)
    check_model(model, path)
    return model


def check_file(path: Path) -> None:
    """Raises ModelError for what is no file on disk that a model may be in."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise ModelError(f"{shown(str(path))} cannot be read: {getattr(error, 'strerror', error)}") from None
    if S_ISDIR(status.st_mode):
        raise ModelError(f"{path} is a folder; expected an ONNX file")
    if not S_ISREG(status.st_mode):
        raise ModelError(f"{path} is a pipe or a device; expected a file on disk, for a model is read more than once")
    if status.st_size > LARGEST_FILE:
        raise ModelError(
            f"{path} has {status.st_size} bytes; expected at most {LARGEST_FILE}, with larger weights as external data "
            "beside it"
        )


def _check_versions(path: Path, model: onnx.ModelProto) -> None:
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{path} has ONNX IR version {model.ir_version}; expected at most {onnx.IR_VERSION}, the newest that the "
            f"installed onnx {onnx.__version__} knows; update onnx, or export the model for an older version"
        )
    if model.ir_version < 1:
        raise ModelError(f"{path} has ONNX IR version {model.ir_version}; expected 1 at least: the file is damaged")
    for each in (s for proto in (model, *model.functions) for s in proto.opset_import):
        if not 0 <= each.version < 1 << 31:
            raise ModelError(f"{path} uses version {each.version} of operator set {each.domain!r}; no set has as many")
    newest = onnx.defs.onnx_opset_version()
    version = operator_sets(model).get("")
    if version is None and any(n.domain in ("", "ai.onnx") for n in model.graph.node):
        raise ModelError(f"{path} does not say which ONNX operator set it uses (opset_import is missing)")
    if version is not None and not 1 <= version <= newest:
        raise ModelError(
            f"{path} uses ONNX operator set {version}; expected 1 to {newest}, the newest that the installed "
            f"onnx {onnx.__version__} knows; update onnx, or export the model with an older operator set"
        )


def element_type(number: int, what: str) -> str:
    """The dtype of an ONNX element type. Raises ModelError naming `what` has it, if modelc does not compute with it."""
    name: str = ELEMENT_TYPES.get(number, f"number {number}")
    if name not in DTYPES:
        raise ModelError(f"{what} has elements of type {name}; expected one of {', '.join(DTYPES)}")
    return name


def tensor_array(tensor: onnx.TensorProto, folder: Path, what: str = "") -> Array:
    """The data of a tensor; external data is looked for in `folder` alone. Raises ModelError."""
    what = what or f"tensor {tensor.name!r}"
    dtype = DTYPES[element_type(tensor.data_type, what)]
    shape = tuple(tensor.dims)
    check_shape(shape, what)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, folder, what, dtype, shape)
    expected = stored_bytes(dtype, shape)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != expected:
        raise ModelError(f"{what} {list(shape)} needs {expected} bytes of data, found {len(tensor.raw_data)}")
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"{what} has data that does not fit its shape {list(shape)}: {error}") from None
    return array if array.dtype == dtype else array.astype(dtype)


def stored_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """What ONNX stores a tensor in: numbers of four and of two bits share bytes."""
    together = 1
    if dtype.name in (*NARROW_INTEGERS, "float4_e2m1fn"):
        together = 4 if dtype.name.endswith("int2") else 2
    return -(-prod(shape) * dtype.itemsize // together)


def with_data(tensor: onnx.TensorProto, folder: Path, what: str = "") -> onnx.TensorProto:
    """The tensor with its data in it, as `onnx` takes it, wherever it lies. Raises ModelError."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return tensor
    what = what or f"tensor {tensor.name!r}"
    path, offset, needed = _place(tensor, folder, what, DTYPES[element_type(tensor.data_type, what)])
    with path.open("rb") as file:
        file.seek(offset)
        return onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=file.read(needed))


def _external(tensor: onnx.TensorProto, folder: Path, what: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if dtype.name in NARROW:
        return numpy_helper.to_array(with_data(tensor, folder, what))
    path, offset, _ = _place(tensor, folder, what, dtype)
    array = np.fromfile(
        path, dtype.newbyteorder("<") if dtype.name != "bfloat16" else dtype, prod(shape), offset=offset
    )
    return array.astype(dtype, copy=False).reshape(shape)


def _place(tensor: onnx.TensorProto, folder: Path, what: str, dtype: np.dtype[Any]) -> tuple[Path, int, int]:
    """The file that a tensor's data lies in, where it begins there, and how many bytes it has."""
    entries = {e.key: e.value for e in tensor.external_data}
    if unknown := sorted(entries.keys() - EXTERNAL_KEYS):
        expected = ", ".join(sorted(EXTERNAL_KEYS))
        raise ModelError(f"{what}: expected external data to say {expected}, found {shown(unknown[0])}")
    location = entries.get("location", "")
    path = _inside(folder, location, what)
    needed = stored_bytes(dtype, tuple(tensor.dims))
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or needed)
    except ValueError:
        values = " and ".join(shown(entries[key]) for key in ("offset", "length") if key in entries)
        raise ModelError(
            f"{what}: expected numbers as offset and length of its external data, found {values}"
        ) from None
    size = path.stat().st_size
    if length != needed:
        raise ModelError(f"{what} {list(tensor.dims)} needs {needed} bytes, but its external data has length {length}")
    if offset < 0 or offset + length > size:
        raise ModelError(
            f"{what} lies at bytes {offset} to {offset + length} of {location}, which has {size} bytes; "
            "the data file is truncated or belongs to another model"
        )
    return path, offset, needed


def _inside(folder: Path, location: str, what: str) -> Path:
    """The data file `location`, which has to be within the model's folder, symbolic links resolved."""
    parts = PurePosixPath(location)
    outside = parts.is_absolute() or PureWindowsPath(location).is_absolute() or "\\" in location or "\0" in location
    if not location or outside or ".." in parts.parts:
        raise ModelError(f"{what} has its data in {shown(location)}; expected a file within the model's folder")
    try:
        root, path = folder.resolve(), (folder / parts).resolve()
        there = path.is_file()
    except (OSError, RuntimeError) as error:  # a name that is too long, a loop of links
        raise ModelError(f"{what} has its data in {shown(location)}, which cannot be opened: {error}") from None
    if not path.is_relative_to(root):
        raise ModelError(f"{what} has its data in {shown(location)}, a link that leaves the model's folder")
    if not there:
        raise ModelError(f"{what} has its data in {shown(location)}, which is not in the model's folder {folder}")
    return path


def sparse_array(sparse: onnx.SparseTensorProto, folder: Path) -> Array:
    """A sparse initialiser, made dense."""
    what = f"sparse tensor {sparse.values.name!r}"
    values = tensor_array(sparse.values, folder, what)
    indices = tensor_array(sparse.indices, folder, f"the indices of {what}")
    check_shape(sparse.dims, what)
    if (made := prod(sparse.dims) * values.itemsize) > LARGEST_DENSE:
        raise ModelError(f"{what} {list(sparse.dims)} takes {made} bytes when dense; expected at most {LARGEST_DENSE}")
    rank = len(sparse.dims)
    if not rank:
        raise ModelError(f"{what} has no dimensions; expected one at least")
    if values.ndim != 1 or indices.shape not in ((values.size,), (values.size, rank)) or indices.dtype != np.int64:
        raise ModelError(
            f"{what} has values {list(values.shape)} and indices {indices.dtype}{list(indices.shape)}; expected "
            f"int64 indices, one or {rank} for each value"
        )
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.size and indices.min() < 0:
        raise ModelError(f"{what} has indices outside its shape {list(sparse.dims)}")
    try:
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except IndexError:
        raise ModelError(f"{what} has indices outside its shape {list(sparse.dims)}") from None
    return dense
