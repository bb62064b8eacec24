"""The shares of ports: loops of a disassembly, and what llvm-mca says of them."""

from __future__ import annotations

import shutil
from dataclasses import replace

import port_shares
import pytest

from modelc.target import load_target

DISASSEMBLY = """
0000000000000000 <a_k_1>:
   0:\tmov x3, #0x4
   4:\tldr q16, [x1], #16
   8:\tldp q30, q31, [x0], #32
   c:\tfmla v0.4s, v30.4s, v16.s[0]
  10:\tfmla v1.4s, v31.4s, v16.s[0]
  14:\tfmla v2.4s, v30.4s, v16.s[1]
  18:\tfmla v3.4s, v31.4s, v16.s[1]
  1c:\tfmadd s4, s5, s6, s4
  20:\tcbz x5, 24 <a_k_1+0x24>
  24:\tsubs x3, x3, #0x1
  28:\tb.ne 4 <a_k_1+0x4>  // b.any
  2c:\tb.lt 0 <a_k_1>  // b.tstop
  30:\tret

0000000000000034 <other>:
  34:\tb.ne 34 <other>
"""


def test_the_innermost_loop_is_read() -> None:
    code = port_shares.functions(DISASSEMBLY)
    assert list(code) == ["a_k_1", "other"] and len(code["a_k_1"]) == 13
    (loop,) = port_shares.innermost(code["a_k_1"])
    assert len(loop.lines) == 10 and loop.multiply_adds == 4.25
    assert loop.text.startswith("loop:\nldr q16") and loop.text.endswith("b.ne loop")


@pytest.mark.skipif(shutil.which("llvm-mca") is None, reason="no llvm-mca here")
@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a72"])
def test_llvm_mca_says_its_share(cpu: str) -> None:
    mca, code = shutil.which("llvm-mca"), port_shares.functions(DISASSEMBLY)
    assert mca is not None
    target = replace(load_target("cortex-a72"), cpu=cpu)
    (share,) = port_shares.shares(code, {"a_k_1": "conv", "other": "copy"}, target, mca)
    assert share.kernel == "conv" and share.instructions == 10 and 0.05 < share.share <= 1.05
