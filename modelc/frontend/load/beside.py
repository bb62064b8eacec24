"""The files beside a model in which its large tensors lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from modelc.frontend.load.outline import read_outline


def files_beside(path: Path) -> tuple[Path, ...]:
    """The files of external data that the model names, in order of their names. Raises ModelError."""
    model = read_outline(path)
    named = {
        entry.value
        for tensor in (*_tensors(model.graph), *(t for f in model.functions for n in f.node for t in _of_node(n)))
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return tuple(path.parent / name for name in sorted(named - {path.name}))


def bytes_with_files_beside(path: Path) -> int:
    """Of the model's file, and of those beside it. Raises ModelError."""
    return sum(file.stat().st_size for file in (path, *files_beside(path)))


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from _of_node(node)


def _of_node(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        yield attribute.t
        yield from attribute.tensors
        for graph in (attribute.g, *attribute.graphs):
            yield from _tensors(graph)
