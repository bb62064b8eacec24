"""Kernels of single operators by the rule-based schedule: Blocks, Nest, machine code and ONNX Runtime agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from operator_cases import CASES as OPERATOR_CASES
from operator_cases import Case, example, f, i, positive, whole
from three_ways import check

from modelc.ir.block import OpaqueBlock


@dataclass(frozen=True)
class Row:
    """A Case in the storage orders to try; `consts` are inputs whose contents are known when compiling."""

    case: Case
    consts: tuple[int, ...] = ()
    orders: tuple[str, ...] = ("row-major", "channels-last")


def conv(*x: int, w: tuple[int, ...], bias: bool = True, **attrs: Any) -> Row:
    inputs = (f(*x), f(*w), *([f(w[0])] if bias else []))
    return Row(Case("Conv", inputs, attrs), (1, 2)[: 1 + bias])


def transposed(*x: int, w: tuple[int, ...], **attrs: Any) -> Row:
    return Row(Case("ConvTranspose", (f(*x), f(*w), f(w[1] * attrs.get("group", 1))), attrs), (1, 2))


def row_major(*cases: Case) -> list[Row]:
    return [Row(case, (), ("row-major",)) for case in cases]


CONVOLUTIONS = [
    *(conv(1, c, 9, 11, w=(o, c, 3, 3), pads=[1, 1, 1, 1]) for c, o in ((3, 10), (17, 31), (33, 17), (10, 33), (1, 1))),
    conv(2, 3, 9, 9, w=(10, 3, 3, 3), bias=False),
    conv(1, 17, 13, 7, w=(31, 17, 1, 1)),
    conv(1, 32, 7, 7, w=(64, 32, 1, 1), bias=False),
    conv(1, 3, 23, 23, w=(16, 3, 7, 7), strides=[2, 2], pads=[3, 3, 3, 3]),
    conv(1, 16, 14, 14, w=(32, 16, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
    conv(1, 8, 15, 12, w=(10, 8, 3, 2), strides=[3, 2], pads=[0, 1, 2, 0], dilations=[2, 1]),
    conv(1, 8, 15, 15, w=(16, 8, 1, 1), strides=[2, 2]),
    conv(1, 4, 12, 12, w=(6, 4, 3, 3), dilations=[3, 2], pads=[3, 2, 3, 2]),
    conv(1, 16, 9, 9, w=(32, 4, 3, 3), group=4, pads=[1, 1, 1, 1]),
    conv(1, 6, 9, 9, w=(9, 2, 3, 3), group=3, pads=[1, 1, 1, 1]),
    conv(1, 64, 6, 6, w=(64, 32, 3, 3), group=2, pads=[1, 1, 1, 1]),
    *(conv(1, c, 10, 9, w=(c, 1, 3, 3), group=c, pads=[1, 1, 1, 1]) for c in (3, 16, 31, 33, 96)),
    conv(1, 33, 15, 15, w=(33, 1, 5, 5), group=33, pads=[2, 2, 2, 2], strides=[2, 2]),
    conv(1, 5, 9, 9, w=(10, 1, 3, 3), group=5, pads=[1, 1, 1, 1]),
    conv(2, 3, 31, w=(10, 3, 4), pads=[2, 1]),
    conv(1, 17, 40, w=(33, 17, 3), pads=[2, 2], dilations=[2]),
    conv(1, 8, 19, w=(8, 1, 3), group=8, pads=[1, 1]),
    conv(1, 3, 5, 6, 7, w=(10, 3, 3, 3, 3), pads=[1, 1, 1, 1, 1, 1]),
    conv(1, 4, 6, 6, 6, w=(17, 4, 2, 3, 2), strides=[1, 2, 1]),
    conv(1, 2, 3, 3, w=(4, 2, 3, 3)),
    transposed(1, 8, 5, 4, w=(8, 17, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    transposed(1, 10, 5, 4, w=(10, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    transposed(1, 3, 5, 4, w=(3, 16, 5, 2), strides=[3, 2]),
    transposed(1, 16, 4, 4, w=(16, 8, 2, 2), strides=[2, 2]),
    transposed(1, 4, 5, 5, w=(4, 3, 3, 3), group=2, strides=[2, 2]),
    transposed(1, 4, 5, 5, w=(4, 10, 3, 3), pads=[1, 1, 1, 1]),
    transposed(1, 3, 9, w=(3, 10, 4), strides=[2]),
]

CONTRACTIONS = [
    *(
        Row(Case("MatMul", (f(*a), f(*b))), consts, ("row-major",))
        for consts in ((), (1,))
        for a, b in (
            ((1, 64), (64, 100)),
            ((17, 1), (1, 33)),
            ((31, 10), (10, 17)),
            ((64, 33), (33, 128)),
            ((3, 7), (7, 1)),
            ((2, 3, 17, 10), (2, 3, 10, 33)),
            ((2, 3, 17, 10), (10, 33)),
            ((2, 1, 5, 10), (3, 10, 3)),
            ((10,), (10, 17)),
            ((5, 10), (10,)),
            ((10,), (10,)),
        )
    ),
    *(
        Row(Case("Gemm", (f(m, 33), f(*((n, 33) if t else (33, n))), f(n)), {"transB": t}), consts, ("row-major",))
        for m, n, t in ((1, 100, 1), (1, 100, 0), (5, 31, 1), (16, 64, 1))
        for consts in ((), (1, 2))
    ),
    *row_major(
        Case("Gemm", (f(10, 4), f(3, 10), f(4, 1)), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
        Case("MatMul", (f(4, 33, dtype="float64"), f(33, 17, dtype="float64"))),
        Case("MatMul", (whole(-9, 9, 5, 17, dtype="int32"), whole(-9, 9, 17, 10, dtype="int32"))),
        Case("MatMulInteger", (whole(0, 255, 3, 33, dtype="uint8"), whole(-9, 9, 33, 17, dtype="int8"), np.uint8(7))),
        Case("Einsum", (f(2, 3, 17), f(2, 17, 5)), {"equation": "bij,bjk->bki"}),
        Case("Einsum", (f(2, 7, 3, 8), f(2, 9, 3, 8)), {"equation": "bqhd,bkhd->bhqk"}),
    ),
]

POOLS = [
    *(
        Row(Case(op, (f(1, c, 11, 9),), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 0], **extra}))
        for op in ("MaxPool", "AveragePool")
        for c in (3, 17, 32)
        for extra in ({}, {"ceil_mode": 1})
    ),
    *(
        Row(Case("AveragePool", (f(1, 10, 10, 10),), {"kernel_shape": [3, 3], "count_include_pad": 1, **extra}))
        for extra in ({"pads": [1, 1, 1, 1]}, {"pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1}, {})
    ),
    Row(Case("MaxPool", (f(1, 17, 12, 12),), {"kernel_shape": [3, 3], "dilations": [2, 3], "pads": [1, 1, 1, 1]})),
    Row(Case("MaxPool", (f(1, 3, 17),), {"kernel_shape": [3], "strides": [2]})),
    Row(Case("MaxPool", (f(1, 3, 4, 5, 6),), {"kernel_shape": [2, 2, 2]})),
    Row(Case("AveragePool", (f(1, 3, 4, 5, 6),), {"kernel_shape": [2, 3, 2]})),
    Row(Case("MaxPool", (whole(-9, 9, 1, 5, 8, 8, dtype="int8"),), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})),
    Row(Case("MaxPool", (f(1, 3, 6, 6),), {"kernel_shape": [2, 2], "strides": [2, 2]}, (), 2)),
    *(Row(Case(op, (f(2, c, 7, 6),))) for op in ("GlobalAveragePool", "GlobalMaxPool") for c in (3, 17, 64)),
]

REDUCTIONS = [
    *row_major(
        *(Case("Softmax", (f(3, n),)) for n in (1, 2, 15, 16, 17, 31, 33, 64, 70)),
        *(Case("Softmax", (f(2, n, 5),), {"axis": 1}) for n in (1, 3, 16, 33)),
        Case("Softmax", (f(2, 3, 4, 17),), {"axis": 1}),
        Case("LogSoftmax", (f(5, 33),)),
        *(Case("LayerNormalization", (f(3, n), f(n), f(n)), {"axis": -1}) for n in (1, 2, 15, 16, 17, 31, 33, 64, 70)),
        Case("LayerNormalization", (f(3, 4, 17), f(4, 17), f(4, 17)), {"axis": 1}),
        Case("LayerNormalization", (f(2, 5, 17), f(17), f(17)), {"axis": -1}, (), 3),
        *(
            Case(op, (positive(3, 17, 5, 10), i(*axes)), {"keepdims": keep}, (1,))
            for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd", "ReduceL2", "ReduceLogSumExp")
            for axes, keep in (
                ((0,), 1),
                ((1,), 0),
                ((3,), 0),
                ((0, 2), 1),
                ((1, 3), 0),
                ((2, 3), 1),
                ((0, 1, 2, 3), 0),
            )
        ),
        *(Case("ReduceSum", (f(n), i(0)), {"keepdims": 0}, (1,)) for n in (1, 15, 16, 33, 1000)),
        Case("ReduceMax", (whole(-99, 99, 5, 40, dtype="int8"), i(1)), {}, (1,)),
        Case("ReduceSum", (whole(-99, 99, 5, 40, dtype="int64"), i(0)), {}, (1,)),
        *(Case(op, (whole(0, 9, 5, 33, dtype="float32"),), {"axis": a}) for op in ("ArgMax", "ArgMin") for a in (0, 1)),
        Case("ArgMax", (whole(0, 9, 2, 5, 17, dtype="int32"),), {"axis": 1, "keepdims": 0}),
        Case("ArgMax", (f(3, 20),), {"axis": 1, "select_last_index": 1}),
        Case("CumSum", (f(3, 17), np.int64(1)), {}, (1,)),
        Case("LpNormalization", (f(3, 17, 5),), {"axis": 1}),
    ),
    Row(Case("InstanceNormalization", (f(2, 3, 7, 6), f(3), f(3)))),
    Row(Case("InstanceNormalization", (f(1, 33, 9, 9), f(33), f(33))), (1, 2)),
    Row(Case("GroupNormalization", (f(1, 12, 5, 6), f(12), f(12)), {"num_groups": 3})),
    Row(Case("BatchNormalization", (f(2, 17, 5, 6), f(17), f(17), f(17), positive(17)))),
    Row(Case("LRN", (f(1, 10, 5, 6),), {"size": 3, "alpha": 0.1})),
    Row(Case("Softmax", (f(1, 10, 5, 6),), {"axis": 1})),
]

MAPS = [
    *(
        Row(Case(op, (a, b)))
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Greater", "LessOrEqual")
        for a, b in ((f(2, 17, 5, 7), f(1, 17, 1, 1)), (f(2, 3, 5, 7), f(5, 1)))
    ),
    *row_major(
        *(Case("Add", (f(*a), f(*b))) for a, b in (((), ()), ((1,), (70,)), ((33, 1), (1, 33)))),
        *(
            Case(op, (whole(1, 9, 3, 33, dtype=t), whole(1, 9, 33, dtype=t)))
            for t in ("int32", "int64", "uint8", "int8")
            for op in ("Add", "Mul", "Max", "Less", "Equal")
            if t in ("int32", "int64") or op in ("Max", "Less", "Equal")
        ),
        *(
            Case(op, (whole(-99, 99, 40, dtype="int32"), whole(1, 9, 40, dtype="int32")))
            for op in ("Div", "Mod", "Sub")
        ),
        *(Case(op, (f(3, 33, dtype="float64"), f(33, dtype="float64"))) for op in ("Add", "Div", "Max")),
        *(
            Case(op, (whole(0, 2, 3, 33, dtype="bool"), whole(0, 2, 33, dtype="bool")))
            for op in ("And", "Or", "Xor", "Equal")
        ),
        Case("Not", (whole(0, 2, 70, dtype="bool"),)),
        Case("Where", (whole(0, 2, 33, 1, dtype="bool"), f(1, 17), f(33, 17))),
        Case("Where", (whole(0, 2, 33, dtype="bool"), whole(0, 9, 33), whole(0, 9, 33))),
        Case("Clip", (f(3, 40), np.float32(-0.5), np.float32(0.5)), {}, (1, 2)),
        *(
            Case(op, (f(3, 37) * 3,))
            for op in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Gelu", "HardSwish", "Elu", "Softplus", "Mish", "Round")
        ),
        *(Case(op, (positive(3, 37),)) for op in ("Log", "Sqrt", "Reciprocal")),
        Case("LeakyRelu", (f(33),), {"alpha": 0.3}),
        *(
            Case("Cast", (x,), {"to": to})
            for x in (f(33) * 9, whole(0, 99, 33, dtype="uint8"), whole(0, 99, 33), whole(0, 2, 33, dtype="bool"))
            for to in (1, 2, 6, 7, 9, 11)
        ),
    ),
]

MOVES = [
    *row_major(
        *(Case("Transpose", (f(3, 17, 10, 5),), {"perm": p}) for p in ([0, 2, 3, 1], [3, 2, 1, 0], [0, 3, 1, 2])),
        Case("Transpose", (f(70, 33),)),
        Case("Transpose", (whole(0, 99, 20, 33, dtype="uint8"),)),
        Case("Gather", (f(20, 33), whole(-20, 20, 5)), {"axis": 0}),
        Case("Gather", (f(5, 20, 3), whole(-20, 20, 2, 7)), {"axis": 1}),
        Case("Gather", (f(5, 33), whole(0, 33, 40, dtype="int32")), {"axis": 1}),
        Case("Gather", (whole(0, 99, 20, 33), np.int64(-3)), {"axis": 0}),
        Case("GatherElements", (f(5, 17), whole(-5, 5, 3, 17)), {"axis": 0}),
        Case("GatherND", (f(5, 6, 17), whole(-5, 5, 4, 2))),
        Case("Concat", (f(2, 3, 17), f(2, 10, 17), f(2, 1, 17)), {"axis": 1}),
        Case("Concat", (f(3, 17), f(3, 33)), {"axis": -1}),
        Case("Slice", (f(40, 33), i(1, -1), i(37, -100), i(0, 1), i(2, -3)), {}, (1, 2, 3, 4)),
        Case("Split", (f(2, 33), i(16, 17)), {"axis": 1}, (1,), 2),
        Case("Expand", (f(17, 1), i(3, 17, 33)), {}, (1,)),
        Case("Tile", (f(5, 7), i(2, 5)), {}, (1,)),
        Case("Reshape", (f(2, 6, 20), i(4, 60)), {}, (1,)),
        Case("Reshape", (f(2, 6, 4, 5), i(2, 6, 20)), {}, (1,)),
        *(Case("Pad", (f(5, 20), i(1, 2, 2, 3)), {"mode": m}, (1,)) for m in ("constant", "reflect", "edge", "wrap")),
        Case("Pad", (f(5, 20), i(-1, 2, 1, -1)), {}, (1,)),
        Case("Trilu", (f(2, 17, 18), np.int64(1)), {"upper": 0}, (1,)),
    ),
    Row(Case("Transpose", (f(1, 33, 5, 6),), {"perm": [0, 2, 3, 1]})),
    Row(Case("Concat", (f(1, 3, 5, 6), f(1, 17, 5, 6)), {"axis": 1})),
    Row(Case("Pad", (f(1, 17, 5, 6), i(0, 0, 1, 2, 0, 0, 2, 1)), {"mode": "reflect"}, (1,))),
    Row(Case("Slice", (f(1, 17, 9, 8), i(1, 2), i(9, 17), i(2, 1), i(2, 1)), {}, (1, 2, 3, 4))),
    Row(Case("DepthToSpace", (f(1, 32, 3, 5),), {"blocksize": 2})),
    Row(Case("SpaceToDepth", (f(1, 3, 6, 10),), {"blocksize": 2})),
    *(
        Row(Case("Resize", (f(1, 17, 5, 4), None, None, i(1, 17, 11, 8)), {"mode": mode, **extra}, (3,)))
        for mode, extra in (
            ("nearest", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
            ("linear", {}),
            ("linear", {"coordinate_transformation_mode": "align_corners"}),
            ("cubic", {}),
        )
    ),
]


MARKS = {True: pytest.mark.slow, False: ()}


def named(rows: list[Row]) -> list[Any]:
    """Every other row in the first of several orders is slow."""
    return [
        pytest.param(
            *(row.case, row.consts, order),
            id=f"{row.case.op}-{k}-{order}{'-const' * bool(row.consts)}",
            marks=MARKS[bool(k % 2) and order != row.orders[-1]],
        )
        for k, row in enumerate(rows)
        for order in row.orders
    ]


@pytest.mark.parametrize(("case", "consts", "order"), named(CONVOLUTIONS))
@pytest.mark.sweep(5)
def test_convolution(case: Case, consts: tuple[int, ...], order: str) -> None:
    check(example(case, consts, order))


@pytest.mark.parametrize(("case", "consts", "order"), named(CONTRACTIONS))
@pytest.mark.sweep(6)
def test_contraction(case: Case, consts: tuple[int, ...], order: str) -> None:
    check(example(case, consts, order))


@pytest.mark.parametrize(("case", "consts", "order"), named(POOLS))
@pytest.mark.sweep(6)
def test_pool(case: Case, consts: tuple[int, ...], order: str) -> None:
    check(example(case, consts, order))


@pytest.mark.parametrize(("case", "consts", "order"), named(REDUCTIONS))
@pytest.mark.sweep(7)
def test_reduction(case: Case, consts: tuple[int, ...], order: str) -> None:
    check(example(case, consts, order))


@pytest.mark.parametrize(("case", "consts", "order"), named(MAPS))
@pytest.mark.sweep(10)
def test_map(case: Case, consts: tuple[int, ...], order: str) -> None:
    check(example(case, consts, order))


@pytest.mark.parametrize(("case", "consts", "order"), named(MOVES))
@pytest.mark.sweep(7)
def test_move(case: Case, consts: tuple[int, ...], order: str) -> None:
    check(example(case, consts, order))


def sampled(cases: list[Case]) -> list[Any]:
    """The first case of each operator, and every fifth; the others are slow."""
    first = {c.op: k for k, c in reversed([*enumerate(cases)])}
    return [pytest.param(c, id=f"{c.op}-{k}", marks=MARKS[k % 5 > 0 and k != first[c.op]]) for k, c in enumerate(cases)]


@pytest.mark.parametrize("case", sampled(OPERATOR_CASES))
@pytest.mark.sweep(20)
def test_every_operator(case: Case) -> None:
    """What test_ops runs with NumPy, as kernels. Opaque Blocks beside others are made Tasks of their own elsewhere."""
    made = example(case)
    if len(made.task.blocks) > 1 and any(isinstance(b, OpaqueBlock) for b in made.task.blocks):
        pytest.skip("an opaque Block is a Task of its own")
    check(made)
