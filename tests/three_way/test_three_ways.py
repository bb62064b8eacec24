"""The checks of three_ways.py notice what they are for: kernels in C that do one thing wrong each."""

from __future__ import annotations

import numpy as np
import pytest
from three_ways import WAYS, Built, build, random_inputs, run_kernel, task_of, with_kernel

from modelc.codegen.kernel import Kernel, KernelStep

TASK = task_of("Relu", {}, [(5, 33)])  # 165 elements
GOOD = "for (int k = 0; k < 165; ++k) y[k] = x[k] > 0 ? x[k] : 0;"


def built(body: str) -> Built:
    """The Task's Nest with a C kernel in place of the compiled one."""
    plain = build(TASK)
    source = f"void kernel(float *x, float *y, unsigned char *scratch, int begin, int end) {{ {body} }}"
    kernel = Kernel("kernel", None, source, (KernelStep("kernel", ("x0", "y0"), frozenset({"y0"}), 1, 64),), ())
    return with_kernel(TASK, plain.candidate, plain.nest, kernel, plain.target)


def test_a_good_kernel() -> None:
    inputs = random_inputs(TASK)
    for found in run_kernel(built(GOOD), inputs):
        np.testing.assert_array_equal(found["y0"], np.maximum(inputs["x0"], 0))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("y[165] = 0;", "wrong: writes around y0|Segmentation fault"),
        ("y[-1] = 0;", "wrong: writes around y0|Segmentation fault"),
        ("x[3] = 0;", "wrong: writes to x0"),
        ("scratch[64] = 0;", "Segmentation fault|writes around its scratch"),
        ("y[0] = ((volatile float *)x)[165];", "Segmentation fault"),
        ("y[0] = ((volatile float *)x)[-1];", "Segmentation fault"),
        ("y[0] = *(volatile float *)0;", "Segmentation fault"),
    ],
)
def test_a_wrong_kernel(wrong: str, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        run_kernel(built(GOOD + wrong), random_inputs(TASK))


def test_what_is_left_out_differs_from_run_to_run() -> None:
    outputs = run_kernel(built(GOOD.replace("165", "160")), random_inputs(TASK), WAYS[:2])
    assert outputs[0]["y0"].tobytes() != outputs[1]["y0"].tobytes()
