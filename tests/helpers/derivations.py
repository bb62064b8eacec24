"""A derivation rule on the text of a Task: the text that it gives, or why it does not apply."""

from __future__ import annotations

import numpy as np
import pytest
from three_ways import random_inputs, run_task

from modelc.ir.candidate import Stage
from modelc.ir.text import parse_task
from modelc.space.rules.derivation import derive
from modelc.space.rules.rule import DoesNotApply


def derived(text: str, rule: str, **args: str | int) -> str:
    """The text of a Task after one rule, which has to leave its meaning as it was."""
    before = parse_task(text)
    after = derive(before, (Stage(rule, args),))
    inputs = random_inputs(before)
    for name, value in run_task(before, inputs).items():
        found = run_task(after, {k: inputs[k].reshape(after.buffer(k).shape) for k in after.inputs})[name]
        np.testing.assert_allclose(found.reshape(value.shape), value, 1e-5, 1e-6)
    return str(after)


def refused(text: str, rule: str, **args: str | int) -> str:
    with pytest.raises(DoesNotApply) as error:
        derive(parse_task(text), (Stage(rule, args),))
    return str(error.value)
