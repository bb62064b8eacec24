"""The verifiers accept what is right and say what is wrong with what is broken."""

import pytest
from ir_texts import CONCAT, CONV, MATMUL, ROWS, SOFTMAX
from nest_texts import parse_nest

from modelc.errors import InvalidIR
from modelc.ir.block import Block, Buffer, Iter
from modelc.ir.expr import Const, Load, Op, Var
from modelc.ir.nest import Leaf, Nest, Region
from modelc.ir.text import parse_block, parse_task
from modelc.ir.verify import verify_block, verify_nest, verify_task

BUFFERS = {
    "x": Buffer("x", "float32", (8, 8)),
    "v": Buffer("v", "float32", (8,)),
    "y": Buffer("y", "float32", (8,)),
    "at": Buffer("at", "int64", (8,)),
    "X": Buffer("X", "float32", (2, 3, 13, 6)),
    "W": Buffer("W", "float32", (5, 3, 3, 3)),
    "Y": Buffer("Y", "float32", (2, 5, 7, 6)),
}


@pytest.mark.parametrize(
    "text",
    [
        CONV,
        "block a [i:8] assign\n  y[i] = v[7 - i]",
        "block a [i:2 j:4] assign\n  y[i * 4 + j] = v[j * 2 + i]",
        "block a [i:9] assign\n  where i < 8\n  y[i] = v[i]",
        "block a [i:8] assign\n  y[i] = select(i >= 1, v[i - 1], float32(0.0))",
        "block a [i:8] assign\n  y[i] = select(i < 1, float32(0.0), v[i - 1])",
        "block a [i:8] assign\n  y[i] = v[min(max(i * 2 - 3, 0), 7)]",
        "block a [i:8] assign\n  y[i] = v[at[i]]",
        "block a [i:8] assign\n  y[at[i]] = v[i]",
        "block a [i:8 | j:8] argmax\n  y[i] argmax= x[i, j]\n  at[i] argmax= j",
        "block a [i:0] assign\n  y[i + 9] = v[i]",
        "block a [i:3 p:3 | j:8] add\n  where i * 3 + p < 8\n  y[i * 3 + p] += x[i * 3 + p, j]",
    ],
)
def test_blocks_that_are_right(text):
    verify_block(parse_block(text), BUFFERS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("block b [i:8 i:2] assign\n  y[i] = v[i]", "iterator 'i' is there twice"),
        ("block b [if:8] assign\n  y[0] = v[0]", "iterator 'if' is no identifier"),
        ("block b [i:8] assign\n  y[i] = z[i]", "unknown buffer 'z'"),
        ("block b [i:8] assign\n  y[i] = v[j]", "unknown iterator 'j'"),
        ("block b [i:8] assign\n  y[i] = x[i]", "x[i] has 1 indices, and x has 2 dimensions"),
        ("block b [i:8] assign\n  y[i] = v[float32(1.0)]", "index float32(1.0) of v is float32, expected int64"),
        ("block b [i:8] assign\n  y[i] = v[i] + i", "v[i] + i mixes float32 and int64"),
        ("block b [i:8] assign\n  y[i] = select(i, v[i], v[i])", "the condition i is no bool"),
        ("block b [i:8] assign\n  at[i] = exp(i)", "exp(i) takes float32, float64, float16, bfloat16, found int64"),
        ("block b [i:8] assign\n  y[i] = float32(negation(v[i]))", "negation(v[i]) takes bool, found float32"),
        ("block b [i:8] assign\n  y[i] = i", "int64 is written to y, which is float32"),
        ("block b [i:8] assign\n  where i\n  y[i] = v[i]", "condition i is int64, expected bool"),
        ("block b [i:8 | j:8] add\n  y[i] += v[j]\n  at[i] += j", "add has 1 writes, found 2 for 2 values"),
        ("block b [i:8 | j:8] assign\n  y[i] = x[i, j]", "an assign does not reduce over 'j'"),
        ("block b [i:8 | j:8] add\n  y[j] += x[i, j]", "y[j] is indexed by the reduction iterator 'j'"),
        ("block b [i:8 j:8] assign\n  y[i] = x[i, j]", "y[i] does not depend on 'j': its 8 points write one element"),
        ("block b [i:4 j:4] assign\n  y[i + j] = v[i]", "two points of [i:4 j:4] write one element through y[i + j]"),
        ("block b [i:8] assign\n  y[i // 2] = v[i]", "two points of [i:8] write one element through y[i // 2]"),
        ("block b [i:8] assign\n  y[i] = v[i + 1]", "v[i + 1] is read at 1..8 of dimension 0, which has 8 elements"),
        ("block b [i:8] assign\n  y[i] = v[i - 1]", "v[i - 1] is read at -1..6 of dimension 0, which has 8 elements"),
        ("block b [i:9] assign\n  y[i] = v[0]", "y[i] is written at 0..8 of dimension 0, which has 8 elements"),
        (
            "block b [i:8 | k:3] add\n  where i + k - 1 >= 0\n  y[i] += v[i + k - 1]",
            "v[i + k - 1] is read at 0..8 of dimension 0",
        ),
        ("block b [i:8] assign\n  y[i] = select(i >= 2, v[i], v[i - 1])", "v[i - 1] is read at -1..0 of dimension 0"),
    ],
)
def test_broken_blocks(text, message):
    with pytest.raises(InvalidIR) as error:
        verify_block(parse_block(text), BUFFERS, "after inline: task t")
    assert str(error.value).startswith("after inline: task t, block b: ")
    assert message in str(error.value)


def test_broken_blocks_that_text_cannot_say():
    i = Var("i")
    bad = [
        (Block("b", (Iter("i", 8),), (Load("y", (i,)),), (Load("v", (i,)),), "sum"), "unknown aggregation 'sum'"),
        (Block("b", (Iter("i", 8),), (Load("y", (i,)),), (Op("frob", (i,)),)), "unknown operation 'frob'"),
        (Block("b", (Iter("i", 8),), (Load("y", (i,)),), (Op("add", (i,)),)), "add takes 2 operands, found 1"),
        (Block("b", (Iter("i", 8),), (Load("y", (i,)),), (Op("cast", (i,)),)), "a cast of i to no dtype"),
    ]
    for block, message in bad:
        with pytest.raises(InvalidIR, match=message):
            verify_block(block, BUFFERS)


# --- Tasks --------------------------------------------------------------------------------------------------------

TASK = """\
task t(x, w) -> (y) anchor mm
  in x: float32[4, 8]
  const w: float32[8, 6]
  local t: float32[4, 6]
  out y: float32[4, 6]
  block mm [m:4 n:6 | k:8] add
    t[m, n] += x[m, k] * w[k, n]
  block relu [m:4 n:6] assign
    y[m, n] = max(t[m, n], float32(0.0))"""


def test_tasks_that_are_right():
    verify_task(parse_task(TASK))
    verify_task(parse_task(SOFTMAX))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("local t:", "local x:", "buffer 'x' is there twice"),
        ("block relu", "block mm", "block 'mm' is there twice"),
        ("anchor mm", "anchor conv", "the anchor 'conv' is no block"),
        ("(x, w)", "(x, w, z)", "input 'z' is no buffer"),
        ("(x, w)", "(x)", "constant 'w' is no input"),
        ("-> (y)", "-> (y, y)", "output 'y' is there twice"),
        (
            "local t: float32[4, 6]",
            "local t: float32[4, 6] stored split(0, 3)",
            "buffer t: split(0, 3) does not",
        ),
        (
            "local t: float32[4, 6]",
            "local t: float32[4, 6] strides(6)",
            "buffer t has 1 strides for 2 stored",
        ),
        ("max(t[m, n]", "max(z[m, n]", "block relu: unknown buffer 'z'"),
        ("x[m, k] *", "y[m, k] *", "block mm: y is read before any block writes it"),
        ("    y[m, n] =", "    x[m, n] =", "block relu: input x is written"),
        ("    y[m, n] =", "    t[m, n] =", "output y is never written"),
        ("relu [m:4 n:6]", "relu [m:4 n:5]", "element [0, 5] of output y is never written"),
        (
            "relu [m:4 n:6] assign\n",
            "relu [m:4 n:6] assign\n    where m + n < 8\n",
            "element [3, 5] of output y",
        ),
        ("relu [m:4 n:6]", "relu [m:4 n:7]", "y[m, n] is written at 0..6 of dimension 1, which has 6 elements"),
    ],
)
def test_broken_tasks(old, new, message):
    assert old in TASK
    with pytest.raises(InvalidIR) as error:
        verify_task(parse_task(TASK.replace(old, new, 1)), "after fuse")
    assert str(error.value).startswith("after fuse: task t") and message in str(error.value)


# --- Nests --------------------------------------------------------------------------------------------------------

MATMUL_TASK = """\
task mm(A, B) -> (Y) anchor mm
  in A: float32[22, 7]
  in B: float32[7, 32]
  local acc: float32[22, 32]
  out Y: float32[22, 32]
  block mm [m:22 n:32 | k:7] add
    acc[m, n] += A[m, k] * B[k, n]
  block store [m:22 n:32] assign
    Y[m, n] = max(acc[m, n], float32(0.0))"""

PADDED = """\
nest pool(x: float32[10]; y: float32[10]) -> (y)
  phase
    for i0:3
      register s: float32[4]
      vector i1:4
        init pool[i=i0 * 4 + i1] max
          s[i1] = float32(-inf)
      for k0:3
        vector i1:4
          update pool[i=i0 * 4 + i1, k=k0] max
            where i0 * 4 + i1 + k0 - 1 >= 0 and i0 * 4 + i1 + k0 - 1 < 10
            s[i1] max= x[i0 * 4 + i1 + k0 - 1]
      unroll i1:4
        assign write[i=i0 * 4 + i1] assign
          where i0 * 4 + i1 < 10
          y[i0 * 4 + i1] = s[i1]"""
PADDED_TASK = """\
task pool(x) -> (y) anchor pool
  in x: float32[10]
  local s: float32[10]
  out y: float32[10]
  block pool [i:10 | k:3] max
    where i + k - 1 >= 0 and i + k - 1 < 10
    s[i] max= x[i + k - 1]
  block write [i:10] assign
    y[i] = s[i]"""

HALO = """\
nest halo(x: float32[16]; y: float32[16]) -> (y)
  phase
    parallel i0:4
      local row: float32[6]
      vector r0:6
        assign copy[r=i0 * 4 + r0] assign
          row[r0] = select(i0 * 4 + r0 >= 1 and i0 * 4 + r0 < 17, x[i0 * 4 + r0 - 1], float32(0.0))
      vector i1:4
        init sum[i=i0 * 4 + i1] add
          y[i0 * 4 + i1] = float32(0.0)
      for k0:3
        vector i1:4
          update sum[i=i0 * 4 + i1, k=k0] add
            y[i0 * 4 + i1] += row[i1 + k0]"""
HALO_TASK = """\
task halo(x) -> (y) anchor sum
  in x: float32[16]
  local row: float32[18]
  out y: float32[16]
  block copy [r:18] assign
    row[r] = select(r >= 1 and r < 17, x[r - 1], float32(0.0))
  block sum [i:16 | k:3] add
    y[i] += row[i + k]"""
SORTED = """\
nest sorted(x: float32[9]; y: float32[9]) -> (y)
  arena t: float32[9]
  phase
    call sort Sort(x) -> (t) with down=True
  phase
    vector i0:9
      assign copy[i=i0] assign
        y[i0] = t[i0]"""
SORTED_TASK = """\
task sorted(x) -> (y) anchor sort
  in x: float32[9]
  local t: float32[9]
  out y: float32[9]
  opaque sort Sort(x) -> (t) with down=True
  block copy [i:9] assign
    y[i] = t[i]"""
NESTS = {
    "matmul": (MATMUL, MATMUL_TASK),
    "softmax": (ROWS, SOFTMAX),
    "concat": (CONCAT, None),
    "padded": (PADDED, PADDED_TASK),
    "halo": (HALO, HALO_TASK),
    "opaque": (SORTED, SORTED_TASK),
}


@pytest.mark.parametrize("name", NESTS)
def test_nests_that_are_right(name):
    nest, task = NESTS[name]
    verify_nest(parse_nest(nest))
    if task is not None:
        verify_task(parse_task(task))
        verify_nest(parse_nest(nest), parse_task(task), "after build")


ADDED = """\
          unroll m1:6
            vector n1:16
              assign store[m=m0 * 6 + m1, n=n0 * 16 + n1] assign
                Y[m0 * 6 + m1, n0 * 16 + n1] = max(acc[m1, n1], float32(0.0))
"""


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        # loops and tags
        ("matmul", "for n0:2", "parallel n0:2", "loop n0 is parallel, and is not the outermost of its phase"),
        ("matmul", "unroll m1:6", "unroll m0:6", "loop m0 is inside a loop of the same name"),
        ("matmul", "for k0:7", "for k0:0", "loop k0 has 0 iterations, expected at least 1"),
        ("matmul", "unroll m1:6", "vector m1:6", "the vector loop n1 is inside the vector loop m1"),
        ("matmul", "if m0 < 3", "if m0", "the condition m0 is no bool"),
        # names, ranks, dtypes
        ("matmul", "A[m0 * 6 + m1, k0]", "A[m0 * 6 + m1, k1]", "update mm: unknown iterator 'k1'"),
        ("matmul", "* B[k0", "* C[k0", "unknown buffer 'C'"),
        ("matmul", "* B[k0, n0 * 16 + n1]", "* B[k0]", "B[k0] has 1 indices, and B has 2 dimensions"),
        ("matmul", "A: float32", "A: float64", "mixes float64 and float32"),
        ("matmul", "register acc: float32[6, 16]", "register acc: float64[6, 16]", "float32 is written to acc, which"),
        ("matmul", "register acc", "register A", "A is allocated where it names a param"),
        ("matmul", "-> (Y)", "-> (Z)", "output 'Z' is no param"),
        ("concat", "c: float32[4, 3] strides(8, 1)", "c: float32[4, 3] strides(8)", "c has 1 strides for 2 dimensions"),
        ("matmul", "= float32(0.0)\n", "= float32(1.0)\n", "float32(1.0) is not the identity of add"),
        # storage
        ("matmul", "unroll m1:6", "for m1:6", "register acc[m1, n1] is indexed by m1, which is not unrolled"),
        ("matmul", "if m0 < 3", "if m0 < 4", "A[m0 * 6 + m1, k0] is read at 0..23 of dimension 0, which has 22"),
        ("matmul", "acc: float32[6, 16]", "acc: float32[5, 16]", "acc[m1, n1] is written at 0..5 of dimension 0"),
        ("matmul", "-> (Y)", "-> (A)", "Y is written, and is no output"),
        ("concat", "-> (c, d)", "-> (c, d, a)", "output a is never written"),
        ("halo", "x[i0 * 4 + r0 - 1]", "x[i0 * 4 + r0]", "x[i0 * 4 + r0] is read at 1..16 of dimension 0"),
        # bindings
        ("matmul", "store[m=m0 * 6 + m1, n=n0 * 16", "store[m=m0 * 6 + m1, n=n0 * 8", "is not independent"),
        ("matmul", "n=n0 * 16 + n1, k=k0", "n=n0 * 16 + n1, k=0", "is not independent"),
        ("matmul", "k=k0", "k=k0 * 2", "k=k0 * 2 runs over 0..12, and the domain is k:7"),
        ("matmul", "k=k0", "j=k0", "binds [m, n, j], expected [m, n, k]"),
        ("matmul", "for k0:7", "for k0:6", "block mm: update never runs at m=0, n=0, k=6"),
        ("matmul", "        for n0:2", "        for n0:1", "block store: assign never runs at m=0, n=16"),
        ("matmul", ADDED, ADDED * 2, "assign store: runs points that assign store has run before"),
        ("matmul", "m0 < 3", "m0 < 2", "assign store: the binding [m=18 + m1, n=n0 * 16 + n1] is not independent"),
        ("padded", "i=i0 * 4 + i1] assign\n          where i0 * 4 + i1 < 10\n", "i=i0 * 4 + i1] assign\n", "y[i0 * 4"),
        ("padded", "k0:3", "k0:2", "block pool: update never runs at i=0, k=2"),
        ("softmax", "assign exp[", "assign exponent[", "task softmax has no block 'exponent'"),
        ("softmax", "j=j0] add\n          total[0] +=", "j=j0] mul\n          total[0] *=", "block sum is add"),
        # producers and consumers
        ("softmax", "for j0:37\n        assign exp", "for j0:36\n        assign exp", "element [36] of e is read"),
        ("softmax", "      init sum[i=i0] add\n        total[0] = float32(0.0)\n", "", "total is read before it is"),
        ("halo", "row[i1 + k0]", "row[i1 + k0 + 1]", "row[i1 + k0 + 1] is read at 1..6 of dimension 0"),
        ("halo", "vector r0:6", "vector r0:5", "element [5] of row is read before it is written"),
        ("opaque", "  phase\n    call sort Sort(x) -> (t) with down=True\n", "", "block sort has no leaf"),
        ("opaque", "Sort(x)", "Sort(z)", "call sort: unknown region 'z'"),
        # parallel loops
        ("halo", "y[i0 * 4 + i1] +=", "y[i1] +=", "all iterations of the parallel loop i0 write one element of y[i1]"),
        ("halo", "y[i0 * 4 + i1] =", "y[i0 * 3 + i1] =", "two iterations of the parallel loop i0 write one element"),
    ],
)  # fmt: skip
def test_broken_nests(name, old, new, message):
    text, task = NESTS[name]
    assert old in text
    broken = parse_nest(text.replace(old, new, 1))
    with pytest.raises(InvalidIR) as error:
        verify_nest(broken, parse_task(task) if task else None, "after build")
    assert str(error.value).startswith(f"after build: nest {broken.name}")
    assert message in str(error.value) and "@" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            """\
nest n(x: float32[4, 8]; y: float32[4]) -> (y)
  phase
    for i0:4
      for j0:8
        init sum[i=i0] add
          y[i0] = float32(0.0)
        update sum[i=i0, j=j0] add
          y[i0] += x[i0, j0]""",
            "init sum: the binding [i=i0] is not independent",
        ),
        (
            """\
nest n(x: float32[4, 8]; y: float32[4]) -> (y)
  phase
    local s: float32[4]
    for i0:4
      init sum[i=i0] add
        s[i0] = float32(0.0)
    for i0:4
      for j0:8
        update sum[i=i0, j=j0] add
          s[i0] += x[i0, j0]
        assign copy[i=i0, j=j0] assign
          y[i0] = s[i0]""",
            "assign copy: s is read while sum still reduces over j0",
        ),
        (
            """\
nest n(x: float32[4, 8]; y: float32[4]) -> (y)
  phase
    local s: float32[4]
    for i0:4
      init sum[i=i0] add
        s[i0] = float32(0.0)
    for i0:4
      for j0:8
        update sum[i=i0, j=j0] add
          s[i0] += x[i0, j0]
      assign copy[i=i0] assign
        y[i0] = s[3 - i0]""",
            "assign copy: element [3] of s is read before its reduction is complete",
        ),
        (
            """\
nest n(x: float32[4, 8]; y: float32[4]) -> (y)
  phase
    for i0:4
      local s: float32[1]
      init sum[i=i0] add
        s[0] = float32(0.0)
      assign copy[i=i0] assign
        y[i0] = s[0]
      for j0:8
        update sum[i=i0, j=j0] add
          s[0] += x[i0, j0]""",
            "assign copy: element [0] of s is read before its reduction is complete",
        ),
    ],
)
def test_reductions_out_of_order(text, message):
    blocks = """\
task n(x) -> (y) anchor sum
  in x: float32[4, 8]
  out y: float32[4]
  block sum [i:4 | j:8] add
    y[i] += x[i, j]"""
    task = parse_task(blocks) if "copy" not in text else None
    with pytest.raises(InvalidIR) as error:
        verify_nest(parse_nest(text), task)
    assert message in str(error.value)


def test_without_its_task_a_nest_is_checked_for_what_is_read():
    text = SORTED.replace("  phase\n    call sort Sort(x) -> (t) with down=True\n", "")
    with pytest.raises(InvalidIR, match="nest sorted, phase 0, assign copy: t is read before it is written"):
        verify_nest(parse_nest(text))


def test_points_may_run_in_any_order():
    nest = parse_nest(HALO.replace("i=i0 * 4 + i1, k=k0", "i=i0 * 4 + 3 - i1, k=2 - k0"))
    verify_nest(nest, parse_task(HALO_TASK))


def test_broken_leaves():
    region = Region("y", "float32", (4,))
    leaf = Leaf("b", "assign", (Load("y", (Const(0),)),), (Const(0.0, "float32"),), "assign")
    for wrong, message in (
        (Leaf("b", "finish", leaf.writes, leaf.body, "assign"), "unknown part 'finish'"),
        (Leaf("b", "update", leaf.writes, leaf.body, "assign"), "an assign has no update"),
        (Leaf("b", "assign", leaf.writes, leaf.body, "sum"), "unknown aggregation 'sum'"),
        (Leaf("b", "assign", leaf.writes, (), "assign"), "assign has 1 writes, found 1 for 0 values"),
        (Leaf("b", "assign", leaf.writes, leaf.body, "assign", (Const(1),)), "condition 1 is int64, expected bool"),
        (Leaf("b", "assign", leaf.writes, leaf.body, "assign", (), (("i", Const(True, "bool")),)), "is no int64"),
    ):
        with pytest.raises(InvalidIR, match=message):
            verify_nest(Nest("n", (region,), ("y",), ((wrong,),)))
    verify_nest(Nest("n", (region,), ("y",), ((leaf,),)))
