"""A choice of layouts, and its conversion operators: Pieces that copy a value into another layout, in a Task of their
own (ALT, figure 5a)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modelc.ir.block import Block, Iter
from modelc.ir.expr import Load, Var
from modelc.ir.graph import Graph, Node, Value
from modelc.ir.layout import Layout
from modelc.layout.rules import seeds
from modelc.partition.pieces import Piece


@dataclass(frozen=True)
class Conversion:
    """All contractions and windows read `value` in `layout`; or, `back`, the one that computes it writes it so, and
    everything else reads it as it was."""

    value: str
    layout: Layout
    back: bool = False


@dataclass(frozen=True)
class LayoutChoice:
    """How the values and the Pieces' locals of a graph are stored (what is not listed: row-major), with conversions.
    Where one Task could go on, it ends all the same with each of the values `cuts`; the values `chained` stay inside
    the Tasks that write and read them, which are one (None: as prices say)."""

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    conversions: tuple[Conversion, ...] = ()
    cuts: tuple[str, ...] = ()
    chained: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "values": {name: str(self.layouts[name]) for name in sorted(self.layouts)},
            "conversions": [{"value": c.value, "layout": str(c.layout), "back": c.back} for c in self.conversions],
            "cuts": list(self.cuts),
            **({"chained": list(self.chained)} if self.chained else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LayoutChoice:
        """Reads what to_json() wrote. Raises KeyError, TypeError or ValueError."""
        conversions = (
            Conversion(str(c["value"]), Layout.parse(c["layout"]), bool(c["back"])) for c in data["conversions"]
        )
        layouts = {str(n): Layout.parse(x) for n, x in data["values"].items()}
        chained = tuple(map(str, data["chained"])) if "chained" in data else None
        return LayoutChoice(layouts, tuple(conversions), tuple(map(str, data.get("cuts", ()))), chained)


def converted(
    graph: Graph, pieces: Sequence[Piece], choice: LayoutChoice
) -> tuple[Graph, list[Piece], dict[str, Layout]]:
    """`graph` and `pieces` with the conversions in them, and the layouts of all."""
    result, values, stored = list(pieces), dict(graph.values), dict(choice.layouts)
    for conversion in choice.conversions:
        old, new = conversion.value, conversion_name(conversion)
        values[new] = Value(new, values[old].dtype, values[old].shape)
        stored[new] = conversion.layout
        if conversion.back:
            k = next(k for k, p in enumerate(result) if old in p.writes)
            result[k] = replace(result[k], blocks=tuple(b.renamed({old: new}) for b in result[k].blocks))
            result.insert(k + 1, conversion_piece(new, old, values[old].shape, result[k].node))
            continue
        place = next((k + 1 for k, p in enumerate(result) if old in p.writes), 0)
        reads = [k for k, p in enumerate(result) if _reads(p, old)]
        for k in reads:
            result[k] = replace(result[k], blocks=tuple(b.renamed({old: new}) for b in result[k].blocks))
        result.insert(place, conversion_piece(old, new, values[old].shape, result[reads[0]].node))
    return replace(graph, values=values), result, stored


def conversion_name(conversion: Conversion) -> str:
    order = conversion.layout.permutation or ()
    return "#".join([conversion.value, "back" if conversion.back else "to", *map(str, order)])


def conversion_piece(old: str, new: str, shape: tuple[int, ...], node: Node) -> Piece:
    """The copy of `old` to `new`, for the sake of `node`."""
    iters = tuple(Iter(f"i{k}", n) for k, n in enumerate(shape))
    over = tuple(Var(i.name) for i in iters)
    block = Block("convert", iters, (Load(new, over),), (Load(old, over),))
    return Piece(replace(node, op="convert"), (block,), {}, {}, alone=True)


def _reads(piece: Piece, name: str) -> bool:
    """Whether a contraction or a window of the Piece reads the value as data."""
    return name in piece.reads and any(name in seeds(b) for b in piece.blocks if isinstance(b, Block))
