"""The IR's text forms: what str() prints is read back to equal objects; what is wrong is said with its line."""

import pytest
from hypothesis import HealthCheck, given, settings
from ir_strategies import blocks, expressions, nests, opaque, tasks
from nest_texts import parse_nest

from modelc.ir.expr import Const, Load, Op, Var, op, show
from modelc.ir.expr_syntax import ExprSyntaxError, parse
from modelc.ir.scalar import OPERATIONS
from modelc.ir.text import TextError, parse_block, parse_task

short = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@settings(max_examples=150, deadline=None)
@given(expressions)
def test_expression_round_trip(e):
    assert parse(show(e)) == e


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"cast", "bits"}))
def test_every_operation_inside_every_other(name):
    x, y = Var("x"), Load("Y", (Var("i"), Const(-1)))
    e = Op(name, tuple(y if k == 1 else x for k in range(OPERATIONS[name].arity)))
    for outer, operation in OPERATIONS.items():
        if outer not in ("cast", "bits"):
            for k in range(operation.arity):
                args = [x] * operation.arity
                args[k] = e
                nested = Op(outer, tuple(args))
                assert parse(show(nested)) == nested


@short
@given(blocks() | opaque)
def test_block_round_trip(block):
    assert parse_block(str(block)) == block


@short
@given(tasks())
def test_task_round_trip(task):
    assert parse_task(str(task)) == task


@short
@given(nests)
def test_nest_round_trip(nest):
    assert parse_nest(str(nest)) == nest


def test_constants_keep_their_kind():
    assert Const(1, "float32") == Const(1.0, "float32")
    assert parse("float32(1)") == Const(1.0, "float32")
    assert parse("float32(int64(1))") == Op("cast", (Const(1),), "float32")
    assert Const(-0.0, "float32") != Const(0.0, "float32")
    with pytest.raises(ValueError, match=r"0.5 is no constant of int64; say const\(0.5, dtype\)"):
        op("mul", Load("x", ()), 0.5)


def test_a_task_reads_as_it_is_documented():
    text = """\
task conv(x0, x1) -> (y0) anchor conv
  in x0: float32[1, 8, 9, 9] stored reorder(0, 2, 3, 1) strides(1000, 72, 8, 1)
  const x1: float32[4, 8, 3, 3]
  out y0: float32[1, 4, 9, 9]
  block conv [n:1 o:4 h:9 w:9 | c:8 r:3 s:3] add
    where h + r - 1 >= 0 and h + r - 1 < 9
    y0[n, o, h, w] += x0[n, c, h + r - 1, w + s - 1] * x1[o, c, r, s]
  opaque sort TopK(x0, x1) -> (y0) with axis=1, largest=True
  nodes '/layer1/Conv', 'relu 1'"""
    task = parse_task(text)
    assert str(task) == text
    assert task.constants == {"x1"} and task.buffer("x0").strides == (1000, 72, 8, 1)
    assert parse_task("\n".join("    " + line for line in text.splitlines())) == task


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected a block, found nothing"),
        ("block [i:1] add", "line 1: expected 'block NAME [iterators | reductions] AGGREGATION'"),
        ("block b [i] add", "line 1: expected iterators such as 'h:56', not 'i'"),
        ("block b [i:4] sum", "line 1: expected an aggregation of assign, add"),
        ("block b [i:4] add\n  Y[i] = X[i]", "line 2: expected 'BUFFER[indices] += EXPRESSION'"),
        ("block b [i:4] add\n  i += X[i]", "line 2: expected an element of a buffer before '+='"),
        ("block b [i:4] add\n  Y[i] += X[i", "line 2: not an expression: 'X[i'"),
        ("block b [i:4] add\n  Y[i] += frob(X[i])", "line 2: unknown operation 'frob'"),
        ("block b [i:4] add\n  Y[i] += max(X[i])", "line 2: max takes 2 operands, found 1"),
        ("block b [i:4] add\n  Y[i] += 0.5", "line 2: 0.5 is no constant of int64"),
        ("block b [i:4] add\n    Y[i] += X[i]", "line 2: expected an indentation of at most 2 spaces"),
        ("block b [i:4] add\nblock c [i:4] add", "line 2: expected the end of the block"),
        ("opaque b TopK(x) -> y", "line 1: expected 'opaque NAME MEANING(inputs) -> (outputs)'"),
        ("opaque b TopK(x) -> (y) with axis", "line 1: expected 'name=value, ...', found 'axis'"),
    ],
)
def test_block_errors(text, message):
    with pytest.raises(TextError) as error:
        parse_block(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  in x float32[1]", "line 2: expected 'NAME: DTYPE[EXTENTS]'"),
        ("  in x: float31[1]", "line 2: expected a dtype of float32"),
        ("  in x: float32[1] stored frob(1)", "line 2: unknown layout primitive 'frob'"),
        ("  in x: float32[1] stored split(0", "line 2: expected a layout such as"),
        ("  given x: float32[1]", "line 2: expected a buffer ('in', 'out', 'const' or 'local'), 'block'"),
    ],
)
def test_task_errors(line, message):
    with pytest.raises(TextError) as error:
        parse_task("task t() -> () anchor b\n" + line)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("  loop i:4", "line 2: expected 'phase' or 'arena REGION'"),
        ("  phase\n    loop i:4", "line 3: expected a statement (for, parallel"),
        ("  phase\n    for i", "line 3: expected 'for VARIABLE:EXTENT'"),
        ("  phase\n    else", "line 3: expected 'else' right after an 'if'"),
        ("  phase\n    init b[i] add", "line 3: expected 'name=value, ...', found 'i'"),
        ("  phase\n    register x: [1]", "line 3: expected 'NAME: DTYPE[EXTENTS]'"),
    ],
)
def test_nest_errors(lines, message):
    with pytest.raises(TextError) as error:
        parse_nest("nest n() -> ()\n" + lines)
    assert message in str(error.value)


def test_expression_errors():
    with pytest.raises(ExprSyntaxError, match=r"not part of an expression: 'x\.y'"):
        parse("x.y + 1")
