"""Ways to damage a model: its bytes, its protobuf whatever that means, and its graph.

An Edit is a name and a seed, so that a mutant is a seed model and a few Edits, and can be made again from JSON.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, TensorProto, helper, numpy_helper

NUMBERS = (
    0, 1, -1, 2, 3, 7, -2, -7, 16, 64, 255, 4096, 1 << 16, 1 << 20, 1 << 28, 1 << 31, -(1 << 31), 1 << 40,
    (1 << 62) + 1, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"), 2.0**31, 1e10)
TEXTS = ("", "x", "NOTSET", "SAME_UPPER", "linear", "reflect", "axis", "../../x", "a[b]", "[/b]", "ä\n", "A" * 300)
DTYPES = tuple(range(-1, 28))
OTHERS = (
    "Add", "MatMul", "Conv", "Concat", "Reshape", "Gather", "Softmax", "Transpose", "ReduceSum", "Split", "Cast",
    "Loop", "TopK", "If", "Constant", "ConstantOfShape", "Expand", "Tile", "Pad", "Slice", "Nothing", "Where",
    "OneHot", "Range", "EyeLike", "Einsum", "LSTM", "DequantizeLinear", "MaxPool", "Resize", "NonZero", "Shape",
    "Squeeze", "Identity",
)  # fmt: skip


@dataclass(frozen=True)
class Edit:
    kind: str
    seed: int

    def to_json(self) -> list[Any]:
        return [self.kind, self.seed]


Damage = Callable[[onnx.ModelProto, random.Random], None]


def mutated(content: bytes, edits: Sequence[Edit]) -> bytes:
    """The model with the edits applied in order; an edit that finds nothing to change changes nothing."""
    for edit in edits:
        rng = random.Random(edit.seed)
        if edit.kind in BYTES:
            content = BYTES[edit.kind](content, rng)
            continue
        model = onnx.ModelProto()
        try:
            model.ParseFromString(content)
            GRAPH[edit.kind](model, rng)
            content = model.SerializeToString()
        except (
            DecodeError,
            IndexError,
            ValueError,
            TypeError,
            OverflowError,
        ):  # damaged already, or nothing of this kind in it
            continue
    return content


def drawn_edits(rng: random.Random, kinds: Sequence[str] = ()) -> tuple[Edit, ...]:
    names = tuple(kinds) or (*BYTES, *GRAPH)
    return tuple(Edit(rng.choice(names), rng.getrandbits(32)) for _ in range(rng.choice((1, 1, 1, 2, 3))))


# --- bytes --------------------------------------------------------------------------------------------------------


def _flip(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if damaged:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _overwrite(content: bytes, rng: random.Random) -> bytes:
    at, count = rng.randrange(len(content) + 1), rng.choice((1, 2, 4, 10))
    return content[:at] + rng.choice((rng.randbytes(count), b"\xff" * count, b"\0" * count)) + content[at + count :]


def _cut(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + content[at + rng.choice((1, 2, 8, len(content))) :]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    at, count = rng.randrange(len(content) + 1), rng.choice((1, 4, 32))
    return content[: at + count] + content[at:]


BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bytes flipped": _flip,
    "bytes overwritten": _overwrite,
    "bytes cut": _cut,
    "bytes repeated": _repeat,
}


# --- any field of the protobuf --------------------------------------------------------------------------------------


def messages(message: Message) -> Iterator[Message]:
    """The message and all those in it."""
    waiting = [message]
    while waiting:
        top = waiting.pop()
        yield top
        for field, value in top.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                waiting += list(value) if field.is_repeated else [value]


def _number(field: FieldDescriptor, rng: random.Random) -> Any:
    kinds = FieldDescriptor
    if field.cpp_type in (kinds.CPPTYPE_FLOAT, kinds.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.cpp_type == kinds.CPPTYPE_STRING:
        text = rng.choice(TEXTS)
        return text.encode() if field.type == kinds.TYPE_BYTES else text
    if field.cpp_type == kinds.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])
    small = field.cpp_type in (kinds.CPPTYPE_INT32, kinds.CPPTYPE_UINT32)
    return rng.choice([n for n in NUMBERS if -(1 << 31) <= n < 1 << 31] if small else NUMBERS)


def _field(model: onnx.ModelProto, rng: random.Random) -> None:
    """One field of one message, which is set already: cleared, changed, repeated, shortened or exchanged."""
    message = rng.choice([m for m in messages(model) if m.ListFields()])
    field, value = rng.choice(message.ListFields())
    if not field.is_repeated:
        if field.type == FieldDescriptor.TYPE_MESSAGE or rng.random() < 0.3:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _number(field, rng))
        return
    k, way = rng.randrange(len(value)), rng.randrange(4)
    if way == 0:
        del value[k]
    elif way == 1 and field.type != FieldDescriptor.TYPE_MESSAGE:
        value[k] = _number(field, rng)
    elif way == 2:
        value.append(value[k])
    else:
        items = list(value)
        rng.shuffle(items)
        items = [type(i).FromString(i.SerializeToString()) if isinstance(i, Message) else i for i in items]
        del value[:]
        value.extend(items)


def _new_field(model: onnx.ModelProto, rng: random.Random) -> None:
    """One plain field that was not set."""
    message = rng.choice(list(messages(model)))
    plain = [f for f in message.DESCRIPTOR.fields if f.type != FieldDescriptor.TYPE_MESSAGE]
    field = rng.choice(plain)
    if field.is_repeated:
        getattr(message, field.name).extend([_number(field, rng) for _ in range(rng.choice((1, 2, 5)))])
    else:
        setattr(message, field.name, _number(field, rng))


# --- the graph ----------------------------------------------------------------------------------------------------


def graphs(model: onnx.ModelProto) -> list[Any]:
    """The graph, those of branches, and the functions: what has nodes."""
    return [m for m in messages(model) if isinstance(m, (onnx.GraphProto, onnx.FunctionProto)) and m.node]


def _node(model: onnx.ModelProto, rng: random.Random) -> tuple[Any, onnx.NodeProto]:
    graph = rng.choice(graphs(model))
    return graph, rng.choice(graph.node)


def _names(graph: Any) -> list[str]:
    found = [x for node in graph.node for x in (*node.input, *node.output)]
    if isinstance(graph, onnx.GraphProto):
        found += [t.name for t in (*graph.initializer, *graph.input, *graph.output)]
    return found


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another value, of the same type or not."""
    _, node = rng.choice([(g, n) for g in graphs(model) for n in g.node if n.attribute])
    attribute = rng.choice(node.attribute)
    name = attribute.name
    same = attribute.type if rng.random() < 0.6 else 0
    values: dict[int, Any] = {
        AttributeProto.INT: rng.choice(NUMBERS),
        AttributeProto.FLOAT: rng.choice(FLOATS),
        AttributeProto.STRING: rng.choice(TEXTS),
        AttributeProto.INTS: [rng.choice(NUMBERS) for _ in range(rng.choice((1, 2, 4, 5, 9)))],
        AttributeProto.FLOATS: [rng.choice(FLOATS) for _ in range(rng.choice((1, 2, 4)))],
        AttributeProto.STRINGS: [rng.choice(TEXTS) for _ in range(rng.choice((1, 2, 4)))],
        AttributeProto.TENSOR: _tensor(rng),
    }
    if same in (AttributeProto.INTS, AttributeProto.FLOATS) and rng.random() < 0.6:
        changed = list(attribute.ints or attribute.floats)
        pool = NUMBERS if same == AttributeProto.INTS else FLOATS
        if changed and rng.random() < 0.5:
            changed[rng.randrange(len(changed))] = rng.choice(pool)
        elif changed and rng.random() < 0.5:
            changed.pop()
        else:
            changed.append(rng.choice(pool))
        values[same] = changed
    value = values.get(same, rng.choice(list(values.values())))
    empty = isinstance(value, list) and not value
    node.attribute.remove(attribute)
    if not empty:
        node.attribute.append(helper.make_attribute(name, value))


def _attribute_name(model: onnx.ModelProto, rng: random.Random) -> None:
    """Misspelt, doubled, dropped, added, or taken from another node."""
    everything = [(n, a) for g in graphs(model) for n in g.node for a in n.attribute]
    node, attribute = rng.choice(everything)
    way = rng.randrange(5)
    if way == 0:
        attribute.name += rng.choice("sx_")
    elif way == 1:
        node.attribute.append(attribute)
    elif way == 2:
        node.attribute.remove(attribute)
    elif way == 3:
        name = rng.choice(("axis", "axes", "group", "to", "perm", "pads", "strides", "keepdims", "mode", "value"))
        node.attribute.append(helper.make_attribute(name, rng.choice((rng.choice(NUMBERS), [1, 2], "x", 0.5))))
    else:
        node.attribute.append(rng.choice(everything)[1])


def _tensor(rng: random.Random) -> TensorProto:
    dtype = rng.choice((np.float32, np.int64, np.int32, np.bool_, np.float16, np.float64, np.uint8))
    shape = rng.choice(((), (0,), (1,), (3,), (2, 2), (1, 3, 1, 1), (4, 3, 3, 3)))
    if dtype == np.int64 and shape:
        size = int(np.prod(shape))
        return numpy_helper.from_array(np.array([rng.choice(NUMBERS) for _ in range(size)], dtype).reshape(shape), "t")
    return numpy_helper.from_array(np.ones(shape, dtype), "t")


def _inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    graph, node = _node(model, rng)
    way = rng.randrange(6)
    if way == 0:
        node.input.append(rng.choice([*_names(graph), "", "nowhere"]))
    elif way == 1:
        del node.input[rng.randrange(len(node.input))]
    elif way == 2:
        node.input[rng.randrange(len(node.input))] = rng.choice([*_names(graph), "", "nowhere"])
    elif way == 3:
        node.input[rng.randrange(len(node.input))] = rng.choice([*node.output])  # a cycle
    elif way == 4:
        shuffled = list(node.input)
        rng.shuffle(shuffled)
        del node.input[:]
        node.input.extend(shuffled)
    else:
        node.input.extend(list(node.input) * rng.choice((1, 3, 100)))


def _outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    graph, node = _node(model, rng)
    way = rng.randrange(4)
    if way == 0:
        node.output.append(rng.choice([*_names(graph), "", "more"]))
    elif way == 1:
        del node.output[rng.randrange(len(node.output))]
    elif way == 2:
        node.output[rng.randrange(len(node.output))] = rng.choice([*_names(graph), "", "other"])
    else:
        graph.output.append(rng.choice(graph.output))


def _operator(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another operator, domain, place or copy of a node."""
    graph, node = _node(model, rng)
    way = rng.randrange(5)
    if way == 0:
        node.op_type = rng.choice(OTHERS)
    elif way == 1:
        node.domain = rng.choice(("", "ai.onnx", "com.microsoft", "ai.onnx.ml", "nowhere", "own"))
    elif way == 2:
        graph.node.append(node)
    elif way == 3:
        graph.node.remove(node)
    else:
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        graph.node.remove(node)
        graph.node.insert(0, copy)


def _declared(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another type or shape of an input, output or inner value."""
    infos = [m for m in messages(model) if isinstance(m, onnx.ValueInfoProto)]
    info = rng.choice(infos)
    kind, way = info.type.tensor_type, rng.randrange(6)
    if way == 0:
        kind.elem_type = rng.choice([d for d in DTYPES if d >= 0])
    elif way == 1:
        kind.shape.dim[rng.randrange(len(kind.shape.dim))].dim_value = rng.choice(NUMBERS)
    elif way == 2:
        kind.shape.dim.add().dim_value = rng.choice(NUMBERS)
    elif way == 3:
        del kind.shape.dim[rng.randrange(len(kind.shape.dim))]
    elif way == 4:
        info.name = rng.choice(_names(model.graph))
    else:
        for dim in kind.shape.dim:
            dim.dim_value = rng.choice((0, 1, 2, 65536, 1 << 33))


def _weights(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another shape, type, content or place of a tensor's data."""
    tensor = rng.choice([m for m in messages(model) if isinstance(m, TensorProto)])
    way = rng.randrange(8)
    if way == 0:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
    elif way == 1:
        tensor.dims.extend([rng.choice(NUMBERS)] * rng.choice((1, 1, 2, 70)))
    elif way == 2:
        tensor.data_type = max(rng.choice(DTYPES), 0)
    elif way == 3:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    elif way == 4:
        array = _array(tensor)
        shape = rng.choice((array.shape[::-1], (array.size,), (1, *array.shape), array.shape[1:]))
        tensor.CopyFrom(numpy_helper.from_array(np.resize(array, shape), tensor.name))
    elif way == 5:
        array = np.array(_array(tensor))
        pool = FLOATS if array.dtype.kind == "f" else [n for n in NUMBERS if abs(n) < 1 << (8 * array.itemsize - 1)]
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice(pool)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    elif way == 6:
        _external(tensor, rng)
    else:
        tensor.name = rng.choice(_names(model.graph))


def _array(tensor: TensorProto) -> np.ndarray:
    """Its data. Raises ValueError if that is elsewhere, or damaged already."""
    if tensor.data_location == TensorProto.EXTERNAL:
        raise ValueError("external data")
    try:
        return numpy_helper.to_array(tensor)
    except Exception as error:
        raise ValueError("damaged") from error


def _external(tensor: TensorProto, rng: random.Random) -> None:
    places = (
        "weights.bin",
        "nothing.bin",
        "/etc/hostname",
        "../x",
        ".",
        "",
        "a\0b",
        "w" * 5000,
        "dir/../../x",
        "C:\\x",
    )
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=rng.choice(places))
    for key in ("offset", "length"):
        if rng.random() < 0.5:
            tensor.external_data.add(key=key, value=str(rng.choice((*NUMBERS, "x", "1e3", "9" * 5000))))


def _sparse(model: onnx.ModelProto, rng: random.Random) -> None:
    """A sparse initialiser in the place of a dense one, most often of an absurd shape."""
    name = rng.choice([t.name for t in model.graph.initializer])
    held = next(t for t in model.graph.initializer if t.name == name)
    dims = list(held.dims) if rng.random() < 0.5 else [rng.choice(NUMBERS) for _ in held.dims]
    values = helper.make_tensor(name, held.data_type or 1, [2], [1, 2])
    at = [[0] * len(dims), [rng.choice(NUMBERS)] * len(dims)]
    flat = rng.random() < 0.5
    indices = helper.make_tensor(
        "at", 7, [2] if flat else [2, len(dims)], [0, 1] if flat else [x for a in at for x in a]
    )
    model.graph.initializer.remove(held)
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))


def _versions(model: onnx.ModelProto, rng: random.Random) -> None:
    way = rng.randrange(4)
    if way == 0:
        model.opset_import[0].version = rng.choice((*range(1, 30), 0, -1, 1 << 40))
    elif way == 1:
        model.ir_version = rng.choice((0, 1, 2, 3, 8, 14, 99, -1))
    elif way == 2:
        model.opset_import.append(rng.choice(model.opset_import))
    else:
        del model.opset_import[rng.randrange(len(model.opset_import))]


def _subgraph(model: onnx.ModelProto, rng: random.Random) -> None:
    """A branch or function with another signature."""
    inner = [m for m in messages(model) if isinstance(m, (onnx.GraphProto, onnx.FunctionProto)) and m != model.graph]
    graph = rng.choice(inner)
    part = rng.choice((graph.input, graph.output))
    if rng.random() < 0.5:
        del part[rng.randrange(len(part))]
    elif isinstance(graph, onnx.FunctionProto):
        part.append(rng.choice((*part, "more")))
    else:
        part.append(helper.make_tensor_value_info(rng.choice(_names(graph)), 1, [1]))


GRAPH: dict[str, Damage] = {
    "field": _field,
    "new field": _new_field,
    "attribute": _attribute,
    "attribute name": _attribute_name,
    "inputs": _inputs,
    "outputs": _outputs,
    "operator": _operator,
    "declared": _declared,
    "weights": _weights,
    "sparse": _sparse,
    "versions": _versions,
    "subgraph": _subgraph,
}
