"""Random Graphs of convolutions, views and maps, for partitioning and layouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from modelc.ir.graph import Graph, Node, Value
from modelc.ops import evaluate_node, operator_of


class Random:
    """Grows a graph of four-dimensional values node by node; `data` is what every value is for the inputs drawn."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.data: dict[str, np.ndarray] = {}
        self.live: list[str] = []

    def value(self, name: str, data: np.ndarray, constant: bool = False) -> str:
        self.values[name] = Value(name, data.dtype.name, data.shape, data if constant else None)
        self.data[name] = data
        return name

    def const(self, data: object, dtype: str = "float32") -> str:
        return self.value(f"c{len(self.values)}", np.asarray(data, dtype), True)

    def weight(self, *shape: int) -> str:
        return self.const(self.random.standard_normal(shape) / 3)

    def any(self, *shape: int) -> str:
        """A live value, of `shape` if one is asked for and there is one; the latest are the likeliest."""
        found = [n for n in self.live if not shape or self.values[n].shape == shape]
        return found[-1 - min(int(self.random.geometric(0.4)) - 1, len(found) - 1)]

    def node(self, op: str, *inputs: str, count: int = 1, **attrs: object) -> None:
        name = f"{op.lower()}{len(self.nodes)}"
        outputs = tuple(f"{name}_{k}" for k in range(count))
        node = Node(op, name, inputs, outputs, attrs, (name,))
        results = evaluate_node(node, tuple(replace(self.values[x], data=self.data[x]) for x in inputs))
        given = tuple(self.values[x] for x in inputs)
        for output, result, (dtype, _) in zip(outputs, results, operator_of(node).infer(node, given), strict=True):
            assert result.dtype.name == dtype
            self.live.append(self.value(output, result))
        self.nodes.append(node)

    def grow(self) -> None:
        x = self.any()
        shape = self.values[x].shape
        c = shape[1]
        kind = self.random.choice(["map", "map", "binary", "binary", "conv", "move", "move", "concat", "split", "rest"])
        if kind == "map":
            self.node(str(self.random.choice(["Relu", "Sigmoid", "Neg", "Tanh"])), x)
        elif kind == "binary":
            other = self.any(*shape) if self.random.random() < 0.8 else self.weight(1, c, 1, 1)
            self.node(str(self.random.choice(["Add", "Mul", "Sub"])), *self.random.permutation([x, other]).tolist())
        elif kind == "conv":
            k = int(self.random.choice([1, 3]))
            o = int(self.random.choice([2, 4, 8]))
            self.node("Conv", x, self.weight(o, c, k, k), self.weight(o), pads=(k // 2,) * 4)
        elif kind == "move":
            self.move(x)
        elif kind == "concat":
            axis = int(self.random.integers(1, 4))
            fits = [
                y for y in self.live[-8:]
                if all(a == b or d == axis for d, (a, b) in enumerate(zip(self.values[y].shape, shape, strict=True)))
            ]  # fmt: skip
            if fits and sum(self.values[y].shape[axis] for y in fits) <= 32:
                self.node("Concat", *self.random.permutation(fits)[:4].tolist(), axis=axis)
        elif kind == "split" and c % 2 == 0:
            self.node("Split", x, self.const([c // 2] * 2, "int64"), count=2, axis=1)
        elif kind == "rest":
            self.rest(x)

    def move(self, x: str) -> None:
        n, c, h, w = shape = self.values[x].shape
        which = self.random.integers(0, 5)
        if which == 0:
            self.node("Transpose", x, perm=tuple(int(p) for p in (0, *self.random.permutation([1, 2, 3]))))
        elif which == 1:
            self.node("Reshape", x, self.const(self.random.permutation(shape), "int64"))
        elif which == 2 and c % 2 == 0:
            self.node("Reshape", x, self.const([n, c // 2, 2 * h, w], "int64"))
        elif which == 3 and h > 2:
            self.node("Slice", x, *(self.const([v], "int64") for v in (1, h, 2, int(self.random.integers(1, 3)))))
        elif which == 4:
            self.node("Identity", x)

    def rest(self, x: str) -> None:
        which = self.random.integers(0, 4)
        if which == 0:
            self.node("Softmax", x, axis=int(self.random.integers(1, 4)))
        elif which == 1:
            self.node("GlobalAveragePool", x)
        elif which == 2:
            self.node("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        elif self.values[x].shape[2] == self.values[x].shape[3]:
            self.node("MatMul", x, self.any(*self.values[x].shape))

    def graph(self, size: int) -> Graph:
        self.live.append(self.value("x", self.random.standard_normal((1, 4, 4, 4)).astype("float32")))
        while len(self.nodes) < size:
            self.grow()
        produced = [n for n in self.live if n != "x"]
        read = {x for node in self.nodes for x in node.inputs}
        outputs = [n for n in produced if n not in read or self.random.random() < 0.1]
        return Graph("random", ("x",), tuple(outputs), self.values, tuple(self.nodes))
