"""Some nodes of a model as a model of their own, whose inputs are what the whole computed for them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from modelc.errors import ModelError
from modelc.frontend.control.structure import reads
from modelc.frontend.load.read import ELEMENT_TYPES, element_type, read_model, tensor_array
from modelc.frontend.steering.flags import Steered
from modelc.frontend.steering.specialise import declared_shapes, fixed_shapes, free_inputs
from modelc.frontend.witness.surgery import LARGEST_PROTOBUF
from modelc.ir.expr import DTYPES
from modelc.ir.graph import Value
from modelc.scratch import beside

Array = NDArray[Any]
SMALL = 1 << 16  # bytes of an initialiser that shapes may depend on


class Whole:
    """A model with its inputs fixed: `steering`'s constants are initialisers. `inputs` are the others."""

    def __init__(self, path: Path, steering: Steered) -> None:
        self.model = read_model(path)
        graph = self.model.graph
        shapes = fixed_shapes(declared_shapes(graph), {**_shapes_of(steering.constants), **steering.shapes[0]}, {})
        self.inputs = tuple(
            Value(name, element_type(info.type.tensor_type.elem_type, f"input {name!r}"), shapes[name])
            for name, info in free_inputs(graph).items()
            if name not in steering.constants
        )
        self.held = {tensor.name: tensor for tensor in graph.initializer}
        for tensor in self.held.values():
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(numpy_helper.from_array(tensor_array(tensor, path.parent), tensor.name))
        self.held |= {name: numpy_helper.from_array(array, name) for name, array in steering.constants.items()}
        self.sparse = {sparse.values.name: sparse for sparse in graph.sparse_initializer}
        self.nodes = tuple(graph.node)
        self.readers: dict[str, set[int]] = {}
        for number, node in enumerate(self.nodes):
            for name in reads(node):
                self.readers.setdefault(name, set()).add(number)
        self.results = {value.name for value in graph.output}

    @cached_property
    def types(self) -> dict[str, int]:
        """The element types of values, as far as the model says or ONNX infers them; 0 for what is no tensor."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        large = [t for t in model.graph.initializer if t.ByteSize() > SMALL]
        for tensor in large:  # inference takes shapes from numbers, but from few, and no more than a protobuf holds
            if tensor.name not in {value.name for value in model.graph.input}:
                model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            model.graph.initializer.remove(tensor)
        graph = onnx.shape_inference.infer_shapes(model).graph
        return {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}

    @property
    def values(self) -> list[str]:
        """The tensors of numbers that its nodes compute."""
        made = [name for node in self.nodes for name in node.output if name]
        return [name for name in made if ELEMENT_TYPES.get(self.types.get(name, 0)) in DTYPES]

    def excerpt(
        self, kept: Collection[int], arrays: Mapping[str, Array]
    ) -> tuple[onnx.ModelProto, dict[str, Array]] | None:
        """The model of the nodes `kept`, by number, and its inputs. `arrays`: the values of the whole, as they were for
        some inputs; those of dtypes that NumPy lacks as their bits. Outputs are what other nodes read of the values, or
        nobody. None where no output is known, or a value that has to be an input is not."""
        numbers = sorted(kept)
        produced = {name for n in numbers for name in self.nodes[n].output if name}
        read = dict.fromkeys(name for n in numbers for name in reads(self.nodes[n]))
        outer = [name for name in read if name not in produced]
        taken = [name for name in outer if name not in self.held and name not in self.sparse]
        given = [name for name in produced if self._leaves(name, numbers) and name in arrays]
        if not given or any(name not in arrays for name in taken):
            return None

        def described(name: str) -> onnx.ValueInfoProto:
            kind = self.types.get(name) or helper.np_dtype_to_tensor_dtype(arrays[name].dtype)
            return helper.make_tensor_value_info(name, kind, arrays[name].shape)

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        graph = model.graph
        for field in ("node", "initializer", "sparse_initializer", "input", "output", "value_info"):
            graph.ClearField(field)
        graph.node.extend(self.nodes[n] for n in numbers)
        graph.initializer.extend(self.held[name] for name in outer if name in self.held)
        graph.sparse_initializer.extend(self.sparse[name] for name in outer if name in self.sparse)
        graph.input.extend(map(described, taken))
        graph.output.extend(map(described, sorted(given)))
        return model, {name: np.asarray(arrays[name], order="C") for name in taken}

    def _leaves(self, name: str, kept: Collection[int]) -> bool:
        """Whether others than the kept nodes read a value, or none does."""
        readers = self.readers.get(name, set())
        return name in self.results or not readers or not readers <= set(kept)


def _shapes_of(arrays: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Writes a model; what is there is replaced when all of it has been written. Raises ModelError."""
    if model.ByteSize() > LARGEST_PROTOBUF:
        raise ModelError(f"{path} would have {model.ByteSize()} bytes; expected at most {LARGEST_PROTOBUF}")
    try:
        with beside(path, folder=False) as made:
            made.write_bytes(model.SerializeToString())
            os.replace(made, path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None
