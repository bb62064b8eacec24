"""The interpreter: Blocks against NumPy, Nests against the Blocks they schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import layouts
from ir_texts import CONCAT, CONV, MATMUL, ROWS, SOFTMAX
from nest_texts import parse_nest

from modelc.ir import interpret
from modelc.ir.block import Buffer
from modelc.ir.evaluate import values_of
from modelc.ir.expr import Const, Load, Var
from modelc.ir.interpret import garbage, run_block, run_blocks, run_nest, view
from modelc.ir.layout import Layout
from modelc.ir.nest import Region
from modelc.ir.pack import pack_constant
from modelc.ir.scalar import OPERATIONS
from modelc.ir.text import parse_block, parse_task
from modelc.measure.data import from_storage


def random(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def run(text, **buffers):
    run_block(parse_block(text), buffers)
    return buffers


def run_task(task, buffers, opaque=None):
    """What `buffers` lacks is made, full of garbage."""
    for b in task.buffers:
        buffers.setdefault(b.name, garbage(b.shape, b.dtype))
    run_blocks(task.blocks, buffers, opaque or {})


def convolved(x, w):
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2]
    return np.einsum("nchwrs,ocrs->nohw", windows, w)


@pytest.fixture(params=[1 << 22, 64, 7], ids=lambda n: f"grid{n}")
def any_grid(request, monkeypatch):
    """Pieces of any size give the same result."""
    monkeypatch.setattr(interpret, "GRID", request.param)


def test_convolution(any_grid):
    x, w = random(2, 3, 13, 6), random(5, 3, 3, 3, seed=1)
    y = run(CONV, X=x, W=w, Y=np.full((2, 5, 7, 6), np.nan, np.float32))["Y"]
    np.testing.assert_allclose(y, convolved(x, w), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_matrix_product_in_batches(dtype, any_grid):
    a, b = (np.asarray(random(*s) * 9, dtype) for s in [(3, 4, 5), (3, 5, 6)])
    text = "block mm [g:3 m:4 n:6 | k:5] add\n  Y[g, m, n] += A[g, m, k] * B[g, k, n]"
    y = run(text, A=a, B=b, Y=np.empty((3, 4, 6), dtype))["Y"]
    np.testing.assert_allclose(y, a.astype(np.float64) @ b, rtol=1e-5)


def test_integers_wrap_as_their_dtype_does():
    a = np.full((2, 1000), 2**20, np.int32)
    y = run("block mm [m:2 n:2 | k:1000] add\n  Y[m, n] += A[m, k] * A[n, k]", A=a, Y=np.zeros((2, 2), np.int32))["Y"]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, (a * a).sum(1, dtype=np.int32)[0])
    x = np.full(3, 100, np.int8)
    assert run("block s [ | k:3] add\n  Y[()] += x[k]", x=x, Y=np.zeros((), np.int8))["Y"] == np.int8(300 - 256)


def test_a_reduction_over_one_operands_own_iterator():
    a, b = random(4, 5), random(5, 3, 2)
    text = "block mm [m:4 n:3 | k:5 q:2] add\n  Y[m, n] += A[m, k] * B[k, n, q]"
    y = run(text, A=a, B=b, Y=np.zeros((4, 3), np.float32))["Y"]
    np.testing.assert_allclose(y, a @ b.sum(-1), rtol=1e-5)


def test_excluded_points_add_nothing_even_to_infinities():
    text = "block c [i:4 o:2 | k:3] add\n  where i + k - 1 >= 0 and i + k - 1 < 4\n  Y[i, o] += X[i + k - 1] * W[o, k]"
    x, w = random(4), random(2, 3)
    w[0, 0] = np.inf
    y = run(text, X=x, W=w, Y=np.zeros((4, 2), np.float32))["Y"]
    assert y[0, 0] == pytest.approx(x[0] * w[0, 1] + x[1] * w[0, 2], rel=1e-6)
    assert np.isinf(y[1:, 0]).all()


def test_softmax(any_grid):
    x = random(6, 37) * 5
    buffers = {"x": x}
    run_task(parse_task(SOFTMAX), buffers)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(buffers["y"], e / e.sum(1, keepdims=True), rtol=1e-5)


def test_argmax_takes_the_first_of_equals(any_grid):
    x = np.random.default_rng(0).integers(0, 4, (9, 30)).astype(np.float32)
    text = "block a [i:9 | j:30] argmax\n  best[i] argmax= x[i, j]\n  at[i] argmax= j"
    found = run(text, x=x, best=np.zeros(9, np.float32), at=np.zeros(9, np.int64))
    np.testing.assert_array_equal(found["at"], x.argmax(1))
    np.testing.assert_array_equal(found["best"], x.max(1))


def test_an_assignment_leaves_what_its_condition_excludes():
    y = run("block a [i:6] assign\n  where i % 2 == 0\n  Y[i] = float32(1.0)", Y=np.zeros(6, np.float32))["Y"]
    np.testing.assert_array_equal(y, [1, 0, 1, 0, 1, 0])


def test_what_values_share_is_computed_once():
    """By content, not by identity: expressions are rebuilt apart from each other."""

    class Counting(dict):
        def __getitem__(self, name):
            self.asked = [*getattr(self, "asked", []), name]
            return super().__getitem__(name)

    both = [Load("x", (Var("i"),)) * Const(3.0, "float32") + Load("y", (Var("i"),)) for _ in range(2)]
    buffers = Counting(x=np.arange(4, dtype=np.float32), y=np.ones(4, np.float32))
    first, second = values_of([both[0] - both[1], both[1]], {"i": np.arange(4)}, buffers)
    assert (first == 0).all() and second.tolist() == [1.0, 4.0, 7.0, 10.0]
    assert sorted(buffers.asked) == ["x", "y"]


def test_a_reduction_of_nothing_is_its_identity():
    y = run("block s [i:2 | j:0] max\n  Y[i] max= x[i, j]", x=np.zeros((2, 1), np.float32), Y=np.zeros(2, np.float32))
    np.testing.assert_array_equal(y["Y"], [-np.inf, -np.inf])


def test_writing_outside_raises():
    with pytest.raises(IndexError, match=r"Y\[i - 1\] is written outside its shape \[3\]"):
        run("block a [i:3] assign\n  Y[i - 1] = float32(1.0)", Y=np.zeros(3, np.float32))


def test_opaque_blocks_are_called_by_name():
    text = """\
task t(x) -> (y) anchor sort
  in x: float32[5]
  out y: float32[5]
  opaque sort Sort(x) -> (y) with down=True"""
    buffers = {"x": random(5)}
    run_task(parse_task(text), buffers, {"Sort": lambda attrs, x: (np.sort(x)[:: -1 if attrs["down"] else 1],)})
    np.testing.assert_array_equal(buffers["y"], np.sort(buffers["x"])[::-1])


def test_what_nobody_wrote_is_seen():
    text = "task t() -> (y) anchor a\n  out y: float32[4]\n  block a [i:3] assign\n    y[i] = float32(1.0)"
    buffers = {}
    run_task(parse_task(text), buffers)
    np.testing.assert_array_equal(np.isnan(buffers["y"]), [False, False, False, True])


# --- storage ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple).flatmap(lambda s: st.tuples(st.just(s), layouts(s)))
)
def test_what_is_packed_is_found_where_it_is_stored(case):
    shape, layout = case
    buffer = Buffer("x", "int32", shape, layout)
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape) + 1
    stored = pack_constant(array, buffer, layout)
    assert stored.shape == layout.shape(shape)
    assert set(np.unique(stored)) - {0} == set(array.ravel())
    np.testing.assert_array_equal(from_storage(stored.ravel().view(np.uint8), buffer), array)


def test_a_view_needs_enough_storage():
    region = Region("x", "float32", (2, 3), (8, 1))
    flat = np.arange(11, dtype=np.float32)
    np.testing.assert_array_equal(view(region, flat), [[0, 1, 2], [8, 9, 10]])
    for wrong in (flat[:10], flat.astype(np.float64), flat.reshape(1, 11)):
        with pytest.raises(ValueError, match="expected an array of"):
            view(region, wrong)


# --- Nests --------------------------------------------------------------------------------------------------------


def test_tiled_matmul_with_a_boundary(any_grid):
    a, b, y = random(22, 7), random(7, 32, seed=1), np.full((22, 32), np.nan, np.float32)
    run_nest(parse_nest(MATMUL), {"A": a, "B": b, "Y": y})
    np.testing.assert_allclose(y, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-6)


def test_softmax_by_rows(any_grid):
    buffers = {"x": random(6, 37)}
    run_task(parse_task(SOFTMAX), buffers)
    y = np.full((6, 37), np.nan, np.float32)
    run_nest(parse_nest(ROWS), {"x": buffers["x"], "y": y})
    np.testing.assert_allclose(y, buffers["y"], rtol=1e-5)


def test_concat_into_regions_of_one_root():
    a, b, root = random(4, 3), random(4, 5), np.full(32, np.nan, np.float32)
    run_nest(parse_nest(CONCAT), {"a": a, "b": b, "c": root, "d": root[3:]})
    np.testing.assert_array_equal(root.reshape(4, 8), np.concatenate([a + 1, b * 2], axis=1))


def test_argmax_with_a_condition_and_a_temporary(any_grid):
    nest = parse_nest("""\
nest a(x: float32[5, 9]; at: int64[5]) -> (at)
  arena best: float32[5]
  phase
    for i0:5
      init a[i=i0] argmax
        best[i0] = float32(-inf)
        at[i0] = 4611686018427387904
    for j0:2
      for i0:5
        for j1:5
          update a[i=i0, j=j0 * 5 + j1] argmax
            where j0 * 5 + j1 < 9
            best[i0] argmax= x[i0, j0 * 5 + j1]
            at[i0] argmax= j0 * 5 + j1""")
    x = np.random.default_rng(3).integers(0, 4, (5, 9)).astype(np.float32)
    at = np.zeros(5, np.int64)
    run_nest(nest, {"x": x, "at": at})
    np.testing.assert_array_equal(at, x.argmax(1))


def test_order_matters_where_a_leaf_reads_what_it_writes():
    nest = parse_nest("""\
nest scan(y: float32[6]) -> (y)
  phase
    for i0:5
      assign scan[i=i0] assign
        y[i0 + 1] = y[i0] + y[i0 + 1]""")
    y = np.ones(6, np.float32)
    run_nest(nest, {"y": y})
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 5, 6])


def test_updates_of_one_element_from_several_points():
    nest = parse_nest("""\
nest pool(x: float32[8]; y: float32[4]) -> (y)
  phase
    for i0:4
      init pool[i=i0] add
        y[i0] = float32(0.0)
    for i0:8
      update pool[i=i0 // 2, j=i0 % 2] add
        y[i0 // 2] += x[i0]""")
    x, y = random(8), np.full(4, np.nan, np.float32)
    run_nest(nest, {"x": x, "y": y})
    np.testing.assert_allclose(y, x.reshape(4, 2).sum(1), rtol=1e-6)


def test_an_allocation_starts_as_garbage_each_time():
    nest = parse_nest("""\
nest n(y: float32[3]) -> (y)
  phase
    for i0:3
      local t: float32[3]
      assign t[i=i0] assign
        t[i0] = float32(1.0)
      assign y[i=i0] assign
        y[i0] = t[0]""")
    y = np.zeros(3, np.float32)
    run_nest(nest, {"y": y})
    np.testing.assert_array_equal(np.isnan(y), [False, True, True])


def test_packed_operands():
    """A Nest over stored layouts computes what the Block says over logical indices."""
    layout = Layout().then("pad", 1, 0, 3).then("split", 1, 8).then("reorder", 1, 0, 2)
    a, b = random(4, 6), random(6, 13, seed=1)
    nest = parse_nest("""\
nest mm(A: float32[4, 6]; B: float32[2, 6, 8]; Y: float32[4, 13]) -> (Y)
  phase
    parallel m0:4
      register acc: float32[2, 8]
      unroll n0:2
        vector n1:8
          init mm[m=m0, n=n0 * 8 + n1] add
            acc[n0, n1] = float32(0.0)
      for k0:6
        unroll n0:2
          vector n1:8
            update mm[m=m0, n=n0 * 8 + n1, k=k0] add
              acc[n0, n1] += A[m0, k0] * B[n0, k0, n1]
      unroll n0:2
        unroll n1:8
          assign store[m=m0, n=n0 * 8 + n1] assign
            where n0 * 8 + n1 < 13
            Y[m0, n0 * 8 + n1] = acc[n0, n1]""")
    y = np.full((4, 13), np.nan, np.float32)
    stored = pack_constant(b, Buffer("b", "float32", b.shape, layout), layout)
    run_nest(nest, {"A": a, "B": stored, "Y": y})
    np.testing.assert_allclose(y, a @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pairs", [1, 2, 4, 8])
def test_dot_products_of_bytes(pairs: int) -> None:
    """Of the first word of a pair bytes up to 15, of the second signed ones."""
    rng = np.random.default_rng(pairs)
    small, signed = rng.integers(0, 16, (5, 4 * pairs)), rng.integers(-128, 128, (5, 4 * pairs))
    words = [
        np.ascontiguousarray(numbers[:, 4 * k : 4 * k + 4]).astype(dtype).view(np.int32)[:, 0]
        for k in range(pairs)
        for numbers, dtype in ((small, np.uint8), (signed, np.int8))
    ]
    made = OPERATIONS[f"dot{4 * pairs}"].meaning(*words)
    assert made.dtype == np.int32
    np.testing.assert_array_equal(made, (small * signed).sum(1))
