"""How sizes that depend on data go through a node, by the accesses of its Blocks.

A value has a count along a dimension where its extent there is the most that there can be: elements from the count on
are of no use. An iterator that indexes such a dimension goes as far; where it indexes a dimension that is written, that
has the count too. What is computed otherwise from elements that may not be there is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from modelc.ir.block import Block, OpaqueBlock
from modelc.ir.expr import Var, variables
from modelc.ir.graph import Node, Value
from modelc.ops.operator import Definition, Inputs, fail, read

DEPENDS = "has a size that depends on data"
Counts = Mapping[int, str]  # axis -> what says how much there is
OPAQUE = {"roi_align": ("x1", "x2"), "trees": ("x0",)}  # operands whose first dimension is that of the results


def carried(
    node: Node, definition: Definition, inputs: Inputs, outputs: Sequence[Value | None], counts: Sequence[Counts]
) -> tuple[dict[int, str], ...]:
    """The counts of a node's outputs, by axis. Raises ModelError where elements that may not be there are needed."""
    shapes = {f"x{k}": v.shape for k, v in enumerate(inputs) if v is not None}
    shapes |= {f"y{k}": v.shape for k, v in enumerate(outputs) if v is not None}
    shapes |= {buffer.name: buffer.shape for buffer in definition.locals}
    names = {f"x{k}": v.name for k, v in enumerate(inputs) if v is not None}
    walk = _Walk(node, shapes, names, {f"x{k}": dict(by_axis) for k, by_axis in enumerate(counts)})
    for block in definition.blocks:
        if isinstance(block, OpaqueBlock):
            walk.opaque(block)
        else:
            walk.block(block)
    for name in (f"x{k}" for k, by_axis in enumerate(counts) if by_axis):
        if not any(name in read(block) for block in definition.blocks):
            walk.refuse(name, min(walk.counts[name]), f"{DEPENDS}, and no element of it is needed for the result")
    return tuple(walk.counts.get(f"y{k}", {}) for k in range(len(outputs)))


@dataclass(frozen=True)
class _Walk:
    """The Blocks of a node, one after the other: the counts of what they have written so far."""

    node: Node
    shapes: Mapping[str, tuple[int, ...]]
    names: Mapping[str, str]  # of the values that buffers are
    counts: dict[str, dict[int, str]]

    def block(self, block: Block) -> None:
        counts = self.iterators(block)
        for load, axis, index in ((x, k, i) for x in block.reads for k, i in enumerate(x.indices)):
            if not isinstance(index, Var) or index.name not in counts:
                continue
            if load.buffer in self.shapes and axis not in self.counts.get(load.buffer, {}):
                self.refuse(load.buffer, axis, f"has {self.shapes[load.buffer][axis]} elements that meet such a size")
            if any(i.name == index.name for i in block.reduction):
                self.refuse(load.buffer, axis, f"{DEPENDS}, and the node reduces over it")
        for write in block.writes:
            axes = {k: i.name for k, i in enumerate(write.indices) if isinstance(i, Var) and i.name in counts}
            whole = all(self.shapes[write.buffer][k] == block.ranges[name] for k, name in axes.items())
            own = {k: counts[name] for k, name in axes.items()}
            if not whole or {*axes.values()} != {x for i in write.indices for x in variables(i)} & counts.keys():
                self.refuse(block.reads[0].buffer, 0, f"{DEPENDS}, and it becomes part of a dimension of the result")
            if self.counts.setdefault(write.buffer, own) != own:
                self.refuse(block.reads[0].buffer, 0, f"{DEPENDS}, which not all parts of the result have")

    def iterators(self, block: Block) -> dict[str, str]:
        """The counts that iterators go as far as."""
        counts: dict[str, str] = {}
        for load in block.reads:
            for axis, count in self.counts.get(load.buffer, {}).items():
                index = load.indices[axis]
                if not isinstance(index, Var) or block.ranges[index.name] != self.shapes[load.buffer][axis]:
                    self.refuse(load.buffer, axis, f"{DEPENDS}, and its elements are taken otherwise than in turn")
                elif counts.setdefault(index.name, count) != count:
                    self.refuse(load.buffer, axis, f"{DEPENDS}, and meets another such size")
        return counts

    def opaque(self, block: OpaqueBlock) -> None:
        """Rows that are computed one by one; TopK's along another dimension."""
        own: dict[int, str] = {}
        for name, axis, count in ((x, k, c) for x in block.inputs for k, c in self.counts.get(x, {}).items()):
            alone = axis == 0 and name in OPAQUE.get(block.meaning, ())
            if block.meaning == "topk":
                alone = axis != dict(block.attrs)["axis"]
            if block.meaning == "det":
                alone = axis < len(self.shapes[name]) - 2
            if not alone or own.setdefault(axis, count) != count:
                self.refuse(name, axis, f"{DEPENDS}, and the node takes all of its elements together")
        self.counts.update({name: dict(own) for name in block.outputs})

    def refuse(self, buffer: str, axis: int, why: str) -> NoReturn:
        what = f"dimension {axis} of {self.names.get(buffer, buffer)!r}"
        fail(self.node, f"{what} {why}; cut the model before this node, or mask elements with Where and a constant")
