"""Reading an ONNX file: the protobuf, its versions, and the data of its tensors, wherever they are stored."""

from __future__ import annotations

from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import numpy_helper

from modelc.errors import ModelError
from modelc.ir.expr import DTYPES

Array = NDArray[Any]
ELEMENT_TYPES = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
ELEMENT_TYPES |= {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64"}


def read_model(path: str | Path) -> onnx.ModelProto:
    """The model in the file, without external data. Raises ModelError for what is not a model of a known version."""
    path = Path(path)
    if path.is_dir():
        raise ModelError(f"{path} is a folder; expected an ONNX file")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    if not content:
        raise ModelError(f"{path} is empty; expected an ONNX file")
    if content.startswith(b"version https://git-lfs"):
        raise ModelError(f"{path} is a Git LFS pointer, not the model itself; fetch the model with `git lfs pull`")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        raise ModelError(f"{path} is not an ONNX file, or it is truncated: its protobuf cannot be read") from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError(f"{path} is not an ONNX model: it holds no graph")
    _check_text(path, model.graph)
    _check_versions(path, model)
    return model


def _check_text(path: Path, graph: onnx.GraphProto) -> None:
    """Protobuf hands over text that is no UTF-8 as bytes."""
    words = [w for n in graph.node for w in (n.op_type, n.domain, n.name, *n.input, *n.output)]
    words += [a.name for n in graph.node for a in n.attribute]
    words += [x.name for part in (graph.input, graph.output, graph.initializer) for x in part]
    if any(isinstance(w, bytes) for w in words):
        raise ModelError(f"{path} is damaged: it has names that are not UTF-8 text")


def _check_versions(path: Path, model: onnx.ModelProto) -> None:
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{path} has ONNX IR version {model.ir_version}; expected at most {onnx.IR_VERSION}, the newest that the "
            f"installed onnx {onnx.__version__} knows; update onnx, or export the model for an older version"
        )
    newest = onnx.defs.onnx_opset_version()
    version = operator_sets(model).get("")
    if version is None and any(n.domain in ("", "ai.onnx") for n in model.graph.node):
        raise ModelError(f"{path} does not say which ONNX operator set it uses (opset_import is missing)")
    if version is not None and not 1 <= version <= newest:
        raise ModelError(
            f"{path} uses ONNX operator set {version}; expected 1 to {newest}, the newest that the installed "
            f"onnx {onnx.__version__} knows; update onnx, or export the model with an older operator set"
        )


def operator_sets(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """Domain -> version. The domain of ONNX itself is the empty string."""
    sets = {("" if s.domain == "ai.onnx" else s.domain): s.version for s in proto.opset_import}
    if isinstance(proto, onnx.ModelProto) and proto.ir_version < 3:
        sets.setdefault("", 1)
    return sets


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
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} has the impossible shape {list(shape)}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, folder, what, dtype, shape)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != prod(shape) * dtype.itemsize:
        expected = prod(shape) * dtype.itemsize
        raise ModelError(f"{what} {list(shape)} needs {expected} bytes of data, found {len(tensor.raw_data)}")
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{what} has data that does not fit its shape {list(shape)}: {error}") from None
    return array if array.dtype == dtype else array.astype(dtype)


def _external(tensor: onnx.TensorProto, folder: Path, what: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    path = _inside(folder, location, what)
    needed = prod(shape) * dtype.itemsize
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or needed)
    except ValueError:
        raise ModelError(f"{what}: offset and length of its external data are not numbers: {entries}") from None
    size = path.stat().st_size
    if length != needed:
        raise ModelError(f"{what} {list(shape)} needs {needed} bytes, but its external data has length {length}")
    if offset < 0 or offset + length > size:
        raise ModelError(
            f"{what} lies at bytes {offset} to {offset + length} of {location}, which has {size} bytes; "
            "the data file is truncated or belongs to another model"
        )
    array = np.fromfile(
        path, dtype.newbyteorder("<") if dtype.name != "bfloat16" else dtype, prod(shape), offset=offset
    )
    return array.astype(dtype, copy=False).reshape(shape)


def _inside(folder: Path, location: str, what: str) -> Path:
    """The data file `location`, which has to be within the model's folder, symbolic links resolved."""
    parts = PurePosixPath(location)
    outside = parts.is_absolute() or PureWindowsPath(location).is_absolute() or "\\" in location
    if not location or outside or ".." in parts.parts:
        raise ModelError(f"{what} has its data in {location!r}; expected a file within the model's folder")
    root, path = folder.resolve(), (folder / parts).resolve()
    if not path.is_relative_to(root):
        raise ModelError(f"{what} has its data in {location!r}, a link that leaves the model's folder")
    if not path.is_file():
        raise ModelError(f"{what} has its data in {location!r}, which is not in the model's folder {folder}")
    return path


def sparse_array(sparse: onnx.SparseTensorProto, folder: Path) -> Array:
    """A sparse initialiser, made dense."""
    what = f"sparse tensor {sparse.values.name!r}"
    values = tensor_array(sparse.values, folder, what)
    indices = tensor_array(sparse.indices, folder, f"the indices of {what}")
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    try:
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except IndexError:
        raise ModelError(f"{what} has indices outside its shape {list(sparse.dims)}") from None
    return dense
