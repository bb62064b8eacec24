"""A Program run by NumPy: what its Tasks mean, over the places that its values have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import OpaqueBlock, Task
from modelc.ir.control import Body, run_control
from modelc.ir.expr import DTYPES
from modelc.ir.interpret import run_block
from modelc.ir.program import BoundTask, Program, region

Array = NDArray[Any]
Meaning = Callable[..., tuple[Array, ...]]


def run_program(
    program: Program,
    feeds: Mapping[str, Array],
    opaque: Mapping[str, Meaning] | None = None,
    run: Callable[[Task, Mapping[str, Array]], None] | None = None,
) -> dict[str, Array]:
    """The outputs by name. Every root is one flat array, every value a strided view of it, as in a compiled program.

    `opaque` gives the meanings of opaque Blocks (modelc.ops.MEANINGS); `run` executes a Task on logical arrays by
    buffer name, by default its Blocks.
    """
    storage = _Storage(program)
    for name in program.inputs:
        storage.view(name)[...] = feeds[name]
    for name, data in program.constants.items():
        storage.view(name)[...] = data
    for bound in program.tasks:
        views = {b: storage.view(v) for b, v in bound.values.items()}
        if bound.bodies:
            _run_bodies(bound, views, opaque)
            continue
        if run is not None:
            run(bound.task, views)
        else:
            run_task(bound.task, views, opaque or {})
    return {name: storage.view(name).copy() for name in program.outputs}


def _run_bodies(bound: BoundTask, views: Mapping[str, Array], opaque: Mapping[str, Meaning] | None) -> None:
    def body(program: Program) -> Body:
        def run(given: Sequence[Array]) -> list[Array]:
            outputs = run_program(program, dict(zip(program.inputs, given, strict=True)), opaque)
            return [outputs[name] for name in program.outputs]

        return run

    block = bound.control
    attrs = dict(block.attrs)
    inputs = [views[name].copy() for name in block.inputs]
    results = run_control(block.meaning, attrs, inputs, [body(program) for program in bound.bodies])
    for name, k in zip(block.outputs, attrs["outputs"], strict=True):
        if k < len(results):
            views[name][...] = results[k]


def run_task(task: Task, buffers: Mapping[str, Array], opaque: Mapping[str, Meaning]) -> None:
    """Executes a Task on logical arrays by buffer name; the outputs are written in place."""
    own = {b.name: np.zeros(b.shape, DTYPES[b.dtype]) for b in task.locals}
    every = {**buffers, **own}
    for block in task.blocks:
        if isinstance(block, OpaqueBlock):
            results = opaque[block.meaning](dict(block.attrs), *(every[b] for b in block.inputs))
            for name, result in zip(block.outputs, results, strict=False):
                every[name][...] = result
        else:
            run_block(block, every)


class _Storage:
    """One flat array per root, filled with a value that shows where it is read before it is written."""

    def __init__(self, program: Program) -> None:
        self.values = program.values
        self.flat: dict[str, Array] = {}

    def view(self, name: str) -> Array:
        """The value's logical array."""
        value = self.values[name]
        root = self.values[value.root]
        if root.name not in self.flat:
            dtype = DTYPES[root.dtype]
            size = root.elements if root.logical_strides is not None else prod(root.shape)
            self.flat[root.name] = np.full(size, np.nan if dtype.kind == "f" else 0, dtype)
        flat, strides = self.flat[root.name], value.logical_strides
        if strides is None:  # stored otherwise than strided: the logical array stands for it
            return flat.reshape(value.shape)
        return region(flat, value.offset, value.shape, strides)
