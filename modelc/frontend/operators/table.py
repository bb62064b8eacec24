"""The forms of all ONNX operators that do not go into the Graph as they are, and what is known of operators by name."""

from __future__ import annotations

from modelc.frontend.operators import (
    addressed,
    arithmetic,
    finding,
    parts,
    random,
    ranges,
    recurrent,
    shapes,
    sums,
    windows,
)
from modelc.frontend.operators.form import Form
from modelc.ops import OPERATORS
from modelc.ops.row import Row

_FAMILIES = (shapes, parts, arithmetic, sums, windows, addressed, finding, random, ranges, recurrent)
FORMS: dict[str, Form] = {form.name: form for family in _FAMILIES for form in family.FORMS}
ROWS: dict[str, Row] = {**OPERATORS, **{form.name: form.row for form in FORMS.values() if form.row is not None}}
