"""The text of a Graph, which loses nothing (tests read it back).

    graph NAME
      input X: float32[1, 3]
      const W: float32[3] = [1.0, 2.0, 3.0]      few elements; more are "<base64 of zlib-compressed data>"
      value Y: float32[1, 3]
      Y = Op(X, "", W) axis=1 mode="linear" table=int64[2]([1, 2])  # node_name from source_1, source_2
      output Y
      grown X in Y axis=1 room=9
      note "a sentence"

The bodies of control flow follow their node, each a graph between the lines `begin` and `end`.
Names that are not identifiers are quoted as in JSON; `""` is an absent input. A node's sources are printed unless they
are its own name alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.graph import Graph, Node, Value

Array = NDArray[Any]
INLINE = 16  # constants of at most this many elements are printed as numbers
_NUMBERS = ("inf", "nan", "True", "False")  # words that are numbers, and no names


def show_graph(graph: Graph, elide: int | None = None) -> str:
    """The text of `graph`. With `elide`, constants of more elements show their hash instead of their data."""
    computed = {name: v for name, v in graph.values.items() if name not in graph.inputs}
    constants = {name: v.data for name, v in computed.items() if v.data is not None}
    lines = [f"graph {_name(graph.name)}", *(f"  input {_typed(graph.values[name])}" for name in graph.inputs)]
    lines += [f"  const {_typed(graph.values[name])} = {_data(data, elide)}" for name, data in constants.items()]
    lines += [f"  value {_typed(v)}" for name, v in computed.items() if name not in constants]
    for node in graph.nodes:
        lines.append(f"  {show_node(node, elide)}")
        for body in node.bodies:
            lines += ["  begin", *(f"  {line}" for line in show_graph(body, elide).splitlines()), "  end"]
    lines += [f"  output {_name(name)}" for name in graph.outputs]
    lines += [f"  grown {_name(g.past)} in {_name(g.present)} axis={g.axis} room={g.room}" for g in graph.grown]
    lines += [f"  note {json.dumps(note)}" for note in graph.notes]
    return "\n".join(lines) + "\n"


def show_node(node: Node, elide: int | None = None) -> str:
    """One node as a line of the Graph's text."""
    attrs = "".join(f" {key}={_attribute(value, elide)}" for key, value in node.attrs.items())
    source = "" if node.source == (node.name,) else f" from {', '.join(map(_name, node.source))}"
    outputs, inputs = (", ".join(map(_name, names)) for names in (node.outputs, node.inputs))
    return f"{outputs} = {_name(node.op)}({inputs}){attrs}  # {_name(node.name)}{source}".rstrip()


def _name(name: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name != "from" and name not in _NUMBERS
    return name if plain else json.dumps(name)


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _typed(value: Value) -> str:
    return f"{_name(value.name)}: {_type(value.dtype, value.shape)}"


def _data(data: Array, elide: int | None) -> str:
    if data.size <= INLINE:
        numbers = _numbers(data)
        if _read_back(numbers, data.dtype).tobytes() == data.tobytes():
            return f"[{', '.join(map(repr, numbers))}]"
    content = np.asarray(data).astype(data.dtype.newbyteorder("<"), copy=False).tobytes()
    if elide is not None and data.size > elide:
        return f"<elided sha256:{hashlib.sha256(content).hexdigest()[:16]}>"
    return json.dumps(base64.b64encode(zlib.compress(content, 1)).decode())


def _numbers(data: Array) -> list[Any]:
    """Python numbers that print short and read back to the same bits."""
    flat = data.reshape(-1)
    if data.dtype.kind in "iub" or data.dtype == np.float64:
        return list(flat.tolist())
    return [float(str(x)) if np.isfinite(x) else float(x) for x in flat]


def _read_back(numbers: list[Any], dtype: np.dtype[Any]) -> Array:
    """The elements of a constant whose numbers are printed so: a NaN is read without its sign and payload."""
    read = [float(repr(x)) if isinstance(x, float) else x for x in numbers]
    with np.errstate(over="ignore"):
        return np.asarray(read, None if dtype.kind in "iu" else np.float64).astype(dtype)


def _attribute(value: Any, elide: int | None) -> str:
    if isinstance(value, np.ndarray):
        return f"{_type(value.dtype.name, value.shape)}({_data(value, elide)})"
    if isinstance(value, tuple):
        return f"({', '.join(_attribute(v, elide) for v in value)}{',' if len(value) == 1 else ''})"
    return json.dumps(value) if isinstance(value, str) else repr(value)
