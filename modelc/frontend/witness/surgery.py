"""For verification: a model with inner values exposed, or cut there; what its inputs are used for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from modelc.frontend.control.structure import reads
from modelc.frontend.load.origin import origin_of
from modelc.frontend.load.outline import read_outline
from modelc.frontend.load.read import ELEMENT_TYPES

LARGEST_PROTOBUF = 1_500_000_000
QUANTIZED = {"QGemm", "QAttention"}  # ONNX Runtime's, beside those whose names say it


@dataclass(frozen=True)
class Rounding:
    """How a value of whole numbers is made: `x / scale + zero` rounded, by names in the model; `zero` is "" for none.
    `scale` along `axis` of x, in blocks of `block` (0: none). With `lowest`, it is the zero point itself, and x the
    least of what it has to represent, negated."""

    x: str
    scale: str
    zero: str
    axis: int = 1
    block: int = 0
    lowest: bool = False


@dataclass(frozen=True)
class Span:
    """What is computed between a value and the values given before it: `rounding` says how its whole numbers come
    about, where that is known; `rounds`, how often anything else there is rounded to whole numbers."""

    rounding: Rounding | None
    rounds: int


@dataclass(frozen=True)
class Cut:
    """A model cut at inner values: `spans` are those that it gives, `given` the inputs that take their place for what
    reads them, as far as any is needed, `read` the outputs with what else Roundings name."""

    spans: Mapping[str, Span]
    given: Mapping[str, str]
    read: Mapping[str, str]


def rounds(node: onnx.NodeProto) -> bool:
    """Whether an operator rounds real numbers to whole ones that stand for them."""
    return (
        "Quantize" in node.op_type.replace("Dequantize", "")
        or node.op_type in QUANTIZED
        or (node.op_type.startswith("QLinear"))
    )


def quantizes(path: str | Path) -> bool:
    """Whether anything in the model is rounded to whole numbers while it runs."""
    return any(map(rounds, _every_node(path)))


def dequantizes(path: str | Path) -> bool:
    """Whether whole numbers stand for real ones anywhere in the model: ONNX Runtime's fusions of a product with such
    weights round what they are multiplied with."""
    return any(n.op_type == "DequantizeLinear" for n in _every_node(path))


def multiplies_halves(path: str | Path) -> bool:
    """Whether the model has half floats among its constants: ONNX Runtime rounds to them what it folds into weights."""
    every = (x for inner in _graphs(read_outline(path).graph) for x in inner.initializer)
    return any(x.data_type == onnx.TensorProto.FLOAT16 for x in every)


def _every_node(path: str | Path) -> Iterator[onnx.NodeProto]:
    """Of the model and of its functions."""
    model = read_outline(path)
    yield from _nodes(model.graph)
    for function in model.functions:
        yield from function.node


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    return (node for inner in _graphs(graph) for node in inner.node)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph, and those of branches and loops in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def reads_by_value(path: str | Path) -> dict[str, list[str]]:
    """For each value that the model's graph computes, what its node reads."""
    return {name: [*reads(node)] for node in read_outline(path).graph.node for name in node.output if name}


def expose(path: str | Path, names: Iterable[str], output: Path) -> tuple[str, ...]:
    """Writes the model with every one of `names` that its graph computes as an output, and says which these are."""
    model = onnx.load(path)
    exposed = _exposed(model, names)
    save(model, output)
    return exposed


def cut(path: str | Path, values: Mapping[str, NDArray[Any]], output: Path, asked: Collection[str]) -> Cut:
    """Writes the model cut at `values`, all of which its graph computes: what reads one reads an input of the dtype and
    shape instead. Those that are `asked` for are outputs, and so is what roundings need to be judged; what these do not
    need is left out."""
    model = onnx.load(path)
    given = {name: f"{name}/given" for name in values}
    producers = {x: node for node in model.graph.node for x in node.output if x}
    spans = {name: Span(_rounding(producers[name], name), _rounds_before(producers, name, given)) for name in asked}
    used = (x for s in spans.values() if s.rounding for x in (s.rounding.x, s.rounding.scale, s.rounding.zero) if x)
    stored = {t.name for t in model.graph.initializer}
    read = {x: f"{x}/read" if x in stored else x for x in used if x not in given and (x in stored or x in producers)}
    for node in _nodes(model.graph):
        for k, name in enumerate(node.input):
            node.input[k] = given.get(name, name)
    for name in sorted(read.keys() & stored):  # a constant is no output
        model.graph.node.append(onnx.helper.make_node("Identity", [name], [read[name]]))
    del model.graph.output[:]
    _exposed(model, [*asked, *read.values()])
    nodes = nodes_between(model.graph, [*asked, *read.values()], ())
    needed = {name for node in nodes for name in (*reads(node), *node.output)}
    _keep(model.graph.node, nodes)
    _keep(model.graph.initializer, [tensor for tensor in model.graph.initializer if tensor.name in needed])
    inputs = {name: place for name, place in given.items() if place in needed}
    for name, place in inputs.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(place, kind, values[name].shape))
    save(model, output)
    return Cut(spans, inputs, read)


def nodes_between(graph: onnx.GraphProto, outputs: Iterable[str], given: Collection[str]) -> list[onnx.NodeProto]:
    """The nodes that `outputs` are made by of what is given, and of constants, in order."""
    producers = {name: node for node in graph.node for name in node.output if name}
    needed = set[int]()
    pending, seen = [*outputs], set[str]()
    while pending:
        name = pending.pop()
        if name in seen or name in given or name not in producers:
            continue
        node = producers[name]
        seen |= {*node.output}
        needed.add(id(node))
        pending += reads(node)
    return [node for node in graph.node if id(node) in needed]


def _keep(every: Any, kept: list[Any]) -> None:
    """Takes the others out of a repeated field."""
    if len(kept) < len(every):
        del every[:]
        every.extend(kept)


def _exposed(model: onnx.ModelProto, names: Iterable[str]) -> tuple[str, ...]:
    computed = {x for node in model.graph.node for x in node.output}
    there = {value.name for value in model.graph.output}
    names = tuple(dict.fromkeys(names))
    new = [name for name in names if name in computed and name not in there]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in new)
    return (*there & set(names), *new)


def change_constants(model: onnx.ModelProto, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """Makes of the model's float initializers and Constants, those of bodies too, what `change` makes of them."""
    tensors = [tensor for graph in _graphs(model.graph) for tensor in graph.initializer]
    tensors += [a.t for n in _nodes(model.graph) for a in n.attribute if n.op_type == "Constant" and a.name == "value"]
    for tensor in tensors:
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
            changed = onnx.numpy_helper.from_array(change(onnx.numpy_helper.to_array(tensor)), tensor.name)
            tensor.CopyFrom(changed)


def save(model: onnx.ModelProto, output: Path) -> None:
    """Writes the model, with its data beside it where one protobuf cannot hold it."""
    onnx.save_model(model, output, save_as_external_data=model.ByteSize() > LARGEST_PROTOBUF)


def _rounding(node: onnx.NodeProto, name: str) -> Rounding | None:
    """How `node` rounds to `name`, where its inputs and outputs say it."""
    attrs = {a.name: a.i for a in node.attribute}
    if node.op_type == "QuantizeLinear":
        zero = node.input[2] if len(node.input) > 2 else ""
        return Rounding(node.input[0], node.input[1], zero, attrs.get("axis", 1), attrs.get("block_size", 0))
    if node.op_type == "DynamicQuantizeLinear" and name == node.output[0]:
        return Rounding(node.input[0], node.output[1], node.output[2])
    if node.op_type == "DynamicQuantizeLinear" and name == node.output[2]:
        return Rounding(node.input[0], node.output[1], "", lowest=True)
    return None


def _rounds_before(producers: Mapping[str, onnx.NodeProto], name: str, given: Mapping[str, str]) -> int:
    """How many nodes round between `name` and what is given, beside the one that is known to make it."""
    first = producers[name]
    roundings = int(rounds(first) and _rounding(first, name) is None and name not in first.output[1:])
    pending, seen = [*reads(first)], set[int]()
    while pending:
        value = pending.pop()
        node = producers.get(value)
        if node is None or value in given or id(node) in seen:
            continue
        seen.add(id(node))
        roundings += rounds(node)
        pending += reads(node)
    return roundings


def summary(model: onnx.ModelProto) -> dict[str, Any]:
    """Inputs and outputs (free dimensions by name), operator counts, how many numbers of which dtype it holds, and
    versions, as JSON-like data; with what branches and loops hold."""
    graph, counts, numbers = model.graph, Counter[str](), Counter[str]()
    constants = {t.name for t in graph.initializer}
    held = [t for g in _graphs(graph) for t in (*g.initializer, *(s.values for s in g.sparse_initializer))]
    for node in _nodes(graph):
        counts[f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type] += 1
        for tensor in (a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR):
            numbers[ELEMENT_TYPES.get(tensor.data_type, "unknown")] += prod(tensor.dims)
    for tensor in held:
        numbers[ELEMENT_TYPES.get(tensor.data_type, "unknown")] += prod(tensor.dims)
    return {
        "name": graph.name,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "origin": asdict(origin_of(model)),
        "opsets": {s.domain or "ai.onnx": s.version for s in model.opset_import},
        "inputs": [_described(value) for value in graph.input if value.name not in constants],
        "outputs": [_described(value) for value in graph.output],
        "nodes": sum(counts.values()),
        "operators": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        "parameters": sum(prod(t.dims) for t in held),
        "dtypes": dict(sorted(numbers.items(), key=lambda item: (-item[1], item[0]))),
    }


def _described(value: onnx.ValueInfoProto) -> dict[str, Any]:
    kind = value.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim]
    return {"name": value.name, "dtype": ELEMENT_TYPES.get(kind.elem_type, "unknown"), "shape": dims}
