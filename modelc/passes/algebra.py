"""Reading formulas out of Graphs: products, and polynomials with constant coefficients.

Exporters write one formula in many ways (x * 0.5 * (1 + erf(x / 1.414)), 0.5 * (x * (erf(...) + 1)), ...). Expanding
them gives one form to compare with.
"""

from __future__ import annotations

from math import isclose

from modelc.passes.pattern import Editor

Polynomial = dict[int, float]  # exponent -> coefficient
DEGREE = 4  # more is no activation function


def product(editor: Editor, name: str, depth: int = 8) -> tuple[float, list[str]]:
    """`name` as a number times other values: products and quotients by numbers multiplied out, as far as they are read
    by nothing else."""
    node = editor.producer(name)
    if node is None or depth == 0 or node.op not in ("Mul", "Div", "Neg"):
        return 1.0, [name]
    total, factors = 1.0, []
    for k, x in enumerate(node.inputs):
        number = editor.scalar(x)
        if number is not None and (node.op == "Mul" or (k == 1 and number)):
            total *= number if node.op == "Mul" else 1.0 / number
        elif node.op == "Div" and k == 1:
            return 1.0, [name]
        else:
            inner, more = product(editor, x, depth - 1) if editor.private(x) else (1.0, [x])
            total *= inner
            factors += more
    return -total if node.op == "Neg" else total, factors


def base(editor: Editor, name: str, depth: int = 8) -> str:
    """The value that `name` is an affine function of: below all additions of and multiplications by numbers."""
    node = editor.producer(name)
    if node is None or depth == 0 or node.op not in ("Add", "Sub", "Mul", "Div", "Neg"):
        return name
    operands = [x for x in node.inputs if editor.scalar(x) is None]
    if len(operands) != 1 or (node.op == "Div" and operands[0] != node.inputs[0]):
        return name
    return base(editor, operands[0], depth - 1)


def polynomial(editor: Editor, name: str, x: str, depth: int = 10) -> Polynomial | None:
    """`name` as a polynomial in the value `x`; None if it is none."""
    if name == x:
        return {1: 1.0}
    number = editor.scalar(name)
    if number is not None:
        return {0: number}
    node = editor.producer(name)
    if node is None or depth == 0 or not node.inputs:
        return None
    first = polynomial(editor, node.inputs[0], x, depth - 1)
    if first is None:
        return None
    if node.op == "Neg":
        return {e: -c for e, c in first.items()}
    if len(node.inputs) != 2:
        return None
    second = polynomial(editor, node.inputs[1], x, depth - 1)
    if second is None:
        return None
    if node.op in ("Add", "Sub"):
        sign = 1 if node.op == "Add" else -1
        return {e: first.get(e, 0.0) + sign * second.get(e, 0.0) for e in {*first, *second}}
    if node.op == "Mul":
        return _times(first, second)
    if set(second) != {0}:
        return None
    if node.op == "Div" and second[0]:
        return {e: c / second[0] for e, c in first.items()}
    if node.op == "Pow" and second[0] in (1.0, 2.0, 3.0):
        power: Polynomial | None = {0: 1.0}
        for _ in range(int(second[0])):
            power = _times(power, first) if power is not None else None
        return power
    return None


def _times(a: Polynomial, b: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for i, x in a.items():
        for k, y in b.items():
            result[i + k] = result.get(i + k, 0.0) + x * y
    return result if max(result) <= DEGREE else None


def near(actual: Polynomial | None, expected: Polynomial, tolerance: float = 1e-5) -> bool:
    """Whether all coefficients agree."""
    if actual is None:
        return False
    exponents = {*actual, *expected}
    return all(isclose(actual.get(e, 0.0), expected.get(e, 0.0), rel_tol=tolerance, abs_tol=1e-12) for e in exponents)
