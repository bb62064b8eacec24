"""Passes over the Graph. One file per pass; a pass is a frozen dataclass whose fields are its options, and it is called
on a Graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from modelc.errors import blaming
from modelc.ir.graph import Graph, Node, Value
from modelc.ir.verify_graph import verify_graph
from modelc.ops import operator_of
from modelc.passes.bodies import with_bodies
from modelc.passes.byte_moves import ByteMoves
from modelc.passes.byte_tables import ByteTables
from modelc.passes.clean_arithmetic import CleanArithmetic
from modelc.passes.clean_moves import CleanMoves
from modelc.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from modelc.passes.eliminate_dead import EliminateDead
from modelc.passes.flush_subnormals import FlushSubnormals
from modelc.passes.fold_attention_scale import FoldAttentionScale
from modelc.passes.fold_batch_norm import FoldBatchNorm
from modelc.passes.fold_constants import FoldConstants
from modelc.passes.fuse_gelu import FuseGelu
from modelc.passes.fuse_hard_swish import FuseHardSwish
from modelc.passes.fuse_layer_norm import FuseLayerNorm
from modelc.passes.integer_contractions import IntegerContractions
from modelc.passes.machine import ANY, Machine
from modelc.passes.pack_weights import PackWeights
from modelc.passes.share_heads import ShareHeads
from modelc.passes.spec import made_of
from modelc.passes.widen_halves import WidenHalves
from modelc.target.passes import Spec

Pass = Callable[[Graph], Graph]

PASSES: dict[str, type] = {
    "eliminate_dead": EliminateDead,
    "fold_constants": FoldConstants,
    "widen_halves": WidenHalves,
    "eliminate_common_subexpressions": EliminateCommonSubexpressions,
    "clean_moves": CleanMoves,
    "clean_arithmetic": CleanArithmetic,
    "share_heads": ShareHeads,
    "fuse_layer_norm": FuseLayerNorm,
    "fuse_gelu": FuseGelu,
    "fuse_hard_swish": FuseHardSwish,
    "fold_batch_norm": FoldBatchNorm,
    "fold_attention_scale": FoldAttentionScale,
    "flush_subnormals": FlushSubnormals,
    "byte_moves": ByteMoves,
    "byte_tables": ByteTables,
    "integer_contractions": IntegerContractions,
    "pack_weights": PackWeights,
}

# The list where neither the configuration nor the target names one. Fusions read the exporter's formulas before batch
# norms are folded into weights, and what no product of whole numbers has taken becomes real at the end.
SIMPLIFY: tuple[Spec, ...] = (
    "eliminate_dead",
    "fold_constants",
    "widen_halves",  # {rows: 16}: float16 computes in float32, but products of so few rows by a constant
    "clean_moves",
    "clean_arithmetic",
    "share_heads",  # heads of queries that share keys and values read them where they are
    "eliminate_common_subexpressions",
    "fuse_layer_norm",
    "fuse_gelu",
    "fuse_hard_swish",
    "fold_batch_norm",
    "fold_attention_scale",
    "fold_constants",
    "clean_moves",
    "eliminate_common_subexpressions",
    "flush_subnormals",
    "eliminate_dead",
    "byte_moves",  # what moves or selects numbers between dequantizing and quantizing does so in bytes
    "byte_tables",  # functions of a byte, quantized again, are looked up in a table of 256 bytes
    "integer_contractions",  # products of quantized operands in whole numbers, where the target multiplies bytes
    "pack_weights",  # {rows: 16}: weights of few bits stay packed for products of so many rows at most
    "eliminate_common_subexpressions",  # activations that several products round to bytes are rounded once
    {"fold_constants": {"dequantize": 1}},  # what is still quantized becomes float32
)


def make_pass(spec: Spec, machine: Machine = ANY, place: str = "") -> tuple[str, Pass]:
    """The pass that a configuration or a target names, with its options, for `machine`. Raises ConfigError, which
    begins with `place`."""
    return made_of(spec, PASSES, place, machine=machine)


def infer(node: Node, inputs: tuple[Value | None, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """dtype and shape of a node's outputs, by the operator library."""
    return operator_of(node).infer(node, inputs)


def run_passes(
    graph: Graph,
    specs: Sequence[Spec] = SIMPLIFY,
    machine: Machine = ANY,
    on_pass: Callable[[str, Graph], None] | None = None,
) -> Graph:
    """`graph` after the passes, for `machine`, verified after each; `on_pass` is told each pass's name and result. The
    bodies of its control flow follow, each by itself.

    Raises ConfigError for unknown passes before any is run, InternalError, which names the pass, for one that
    fails, and InvalidIR for a broken result.
    """
    made = [make_pass(spec, machine) for spec in specs]
    for name, apply in made:
        with blaming(f"pass {name}"):
            graph = apply(graph)
        verify_graph(graph, f"pass {name}", infer)
        if on_pass is not None:
            on_pass(name, graph)
    if any(node.bodies for node in graph.nodes):
        graph = with_bodies(graph, lambda body: run_passes(body, specs, machine))
        verify_graph(graph, "passes over bodies", infer)
    return graph


__all__ = ["PASSES", "SIMPLIFY", "Machine", "Pass", "Spec", "infer", "make_pass", "run_passes"]
