"""A random model in the making: its values, the nodes that makers draft, and which of these are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Rng = np.random.Generator
Array = np.ndarray
OPSET = 21
MOST_ELEMENTS = 1 << 14
LARGEST = 1e3  # of any number: what cancels loses no more digits than float32 has
ERRORS = {"float16": 1e-3, "float32": 2e-6, "float64": 2e-6}  # relative, of what was computed in another order
HARMLESS = (5e-4, 5e-6)  # what they may make of results, relative to each and to the largest: half of the tolerance


@dataclass(frozen=True)
class Value:
    """`exact`: whoever computes it gets the same bits, so that a rounding or a comparison of it is safe. `sized`: how
    large it is depends on data, or it is empty, so that makers, who go by its shape, do not take it."""

    name: str
    array: Array
    exact: bool
    sized: bool = False

    @property
    def floating(self) -> bool:
        return self.array.dtype.kind == "f"


@dataclass
class Draft:
    """Nodes that would be appended, with their initialisers. `keeps_exact`: their outputs are exact if their inputs
    are. `sized` are those of their outputs whose size depends on data, or that are empty; `hidden` those that nothing
    else reads: NumPy may have no such numbers. `feeds` are inputs that the model would get for them."""

    nodes: list[onnx.NodeProto]
    held: dict[str, Array] = field(default_factory=dict)
    keeps_exact: bool = False
    sized: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    feeds: dict[str, Array] = field(default_factory=dict)


@dataclass
class RandomGraph:
    """A model in the making: `values` in the order in which they came. `depth` counts the graphs around it."""

    rng: Rng
    makers: Sequence[Maker] = ()
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    held: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    names: list[int] = field(default_factory=lambda: [0])
    depth: int = 0

    def fresh(self, word: str) -> str:
        self.names[0] += 1
        return f"{word}{self.names[0]}"

    def pick(self, options: Sequence[object]) -> object:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def value(self, wanted: Callable[[Value], bool]) -> Value | None:
        """One of the values, the later the likelier."""
        found = [v for v in self.values if not v.sized and wanted(v)]
        return found[-1 - int(self.rng.integers(len(found)) * self.rng.random())] if found else None

    def constant(self, draft: Draft, array: Array) -> str:
        name = self.fresh("w")
        draft.held[name] = array
        return name

    def weights(self, draft: Draft, x: Value, numbers: object) -> str:
        """A constant of the dtype of `x`."""
        return self.constant(draft, np.asarray(numbers).astype(x.array.dtype))

    def whole(self, draft: Draft, *numbers: int) -> str:
        return self.constant(draft, np.array(numbers, np.int64))

    def whole_array(self, draft: Draft, numbers: Array) -> str:
        return self.constant(draft, numbers.astype(np.int64))

    def normal(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def within(self, values: Sequence[Value]) -> RandomGraph:
        """A graph within this one, such as a branch, that reads these values."""
        return RandomGraph(self.rng, self.makers, list(values), names=self.names, depth=self.depth + 1)

    def grow(self, wanted: int, attempts: int) -> None:
        """Appends nodes until there are so many, or so many drafts were tried."""
        while len(self.nodes) < wanted and attempts:
            attempts -= 1
            draft = self.makers[int(self.rng.integers(len(self.makers)))](self)
            if draft is not None:
                self.take(draft)

    def take(self, draft: Draft) -> bool:
        """Appends the draft if ONNX Runtime computes it and its results are harmless."""
        read = {name for node in draft.nodes for name in reads(node)}
        taken = [v for v in self.values if v.name in read]
        made = [name for node in draft.nodes for name in node.output if name and name not in draft.hidden]
        proto = helper.make_graph(
            draft.nodes,
            "draft",
            [info(v.name, v.array) for v in taken] + [info(name, array) for name, array in draft.feeds.items()],
            [onnx.ValueInfoProto(name=name) for name in made],
            [numpy_helper.from_array(array, name) for name, array in draft.held.items()],
        )
        given = {v.name: v.array for v in taken}
        try:
            run = _session(proto)
            found = run.run(made, given | draft.feeds)
            blurred = {v.name: v.array if v.exact else blurred(self.rng, v.array) for v in taken}
            again = found if all(v.exact for v in taken) else run.run(made, blurred | draft.feeds)
        except Exception:  # ONNX Runtime's refusals are of many types; another node is drawn
            return False
        if not all(map(harmless, found, again)):
            return False
        if any(not array.size and name not in draft.sized for name, array in zip(made, found, strict=True)):
            return False
        del proto.output[:]
        proto.output.extend(info(name, array) for name, array in zip(made, found, strict=True))
        try:  # ONNX and ONNX Runtime do not mean the same where a window of ceil_mode begins behind the data
            onnx.shape_inference.infer_shapes(whole(proto), strict_mode=True)
        except onnx.shape_inference.InferenceError:
            return False
        exact = draft.keeps_exact and all(v.exact for v in taken)
        self.nodes += draft.nodes
        self.held |= draft.held
        self.feeds |= draft.feeds
        self.values += [Value(n, array, True, not array.size) for n, array in draft.feeds.items()]
        self.values += [Value(n, array, exact, n in draft.sized) for n, array in zip(made, found, strict=True)]
        return True


Maker = Callable[[RandomGraph], "Draft | None"]


def blurred(rng: Rng, array: Array) -> Array:
    """What somebody may have computed who adds in another order."""
    if array.dtype.name not in ERRORS:
        return array
    return (array * (1 + ERRORS[array.dtype.name] * rng.choice((-1, 1), array.shape))).astype(array.dtype)


def harmless(array: Array, blurred: Array) -> bool:
    """Whether the numbers are of ordinary size, and are hardly others where what they are made of is."""
    if array.dtype.kind not in "fiu" or not array.size:
        return array.shape == blurred.shape and bool((array == blurred).all())
    if array.size > MOST_ELEMENTS or not np.isfinite(array).all() or array.shape != blurred.shape:
        return False
    if array.dtype.kind != "f":
        return bool((array == blurred).all()) and np.abs(array.astype(np.float64)).max() <= LARGEST
    numbers, others = array.astype(np.float64), blurred.astype(np.float64)
    relative = 2e-3 if array.dtype == np.float16 else HARMLESS[0]
    allowed = relative * np.abs(numbers) + HARMLESS[1] * max(1.0, np.abs(numbers).max())
    return bool((np.abs(numbers - others) <= allowed).all()) and np.abs(numbers).max() <= LARGEST


def _session(graph: onnx.GraphProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(whole(graph).SerializeToString(), options, providers=["CPUExecutionProvider"])


def whole(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def reads(node: onnx.NodeProto) -> set[str]:
    """What a node reads, and graphs within it, of which some names are their own."""
    inner = (n for a in node.attribute if a.HasField("g") for n in a.g.node)
    return {name for name in node.input if name}.union(
        *(reads(n) for n in inner), *({o.name for o in a.g.output} for a in node.attribute if a.HasField("g"))
    )


def broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    try:
        return prod(np.broadcast_shapes(tuple(a), tuple(b))) <= MOST_ELEMENTS
    except ValueError:
        return False


def info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def tensors(held: Mapping[str, Array]) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(array, name) for name, array in held.items()]


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name=f"{op}_{outputs[0]}", **attrs)
