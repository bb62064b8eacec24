"""What is asked of the parts of a package before anything of it is written."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_package import plan_of, spec_of

from modelc.errors import PackageError
from modelc.package import Argument, Plan, Step
from modelc.package.check import check_spec


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"variants": ()}, "no variant"),
        ({"variants": (plan_of(3), plan_of(3))}, "equal input shapes"),
        ({"params": ((4, np.zeros(4, np.int8)),)}, "not 64-byte aligned"),
        ({"params": ((0, np.zeros(65, np.int8)), (64, np.zeros(1, np.int8)))}, "overlap"),
        ({"variants": (Plan((), (), (Step("s", "f(); evil", ()),)),)}, "cannot name a kernel"),
        ({"variants": (Plan((), (), (Step("s", "f", (Argument("input", 1),)),)),)}, "input 1 of 0"),
        ({"variants": (Plan((), (), (Step("s", "f", (Argument("arena", 0, 64),)),)),)}, "offset 64 of arena"),
    ],
)
def test_a_spec_that_does_not_fit_together_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(PackageError, match=sentence):
        check_spec(spec_of(**changes))
