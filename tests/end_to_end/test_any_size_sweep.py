"""Every size of a small package, and bad ones, in C under sanitizers; scripts/sweep_sizes.py does more of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from any_size_models import encoder, pictures
from size_sweep import compared, is_there, refusals_in_python, sanitized, swept

import modelc

CASES = {
    "tokens": (encoder, {"seq": "1..40"}, 40),
    "pictures": (pictures, {"height": "16..96:8", "width": "8..64:8"}, 24),
}


@pytest.mark.skipif(not is_there(), reason="gcc has no sanitizers")
@pytest.mark.parametrize("name", CASES)
def test_sizes_are_run_within_their_bytes_and_bad_ones_refused(tmp_path: Path, name: str) -> None:
    make, dims, most = CASES[name]
    model = make(tmp_path / "model.onnx")
    package = sanitized(model, tmp_path / "any.modelc", dims=dims)
    sweep = swept(model, package, most)
    assert len(sweep.outputs) >= most and not compared(sweep, package)
    said = {what: sentence for what, _, sentence in sweep.refused}
    if name == "tokens":
        assert "has 0 along dimension 1, which is 'seq': expected 1 to 40" in said["seq zero"]
        assert "expected 10, by the model and the other inputs" in said["mask disagrees in seq"]
        modelc.compile(model, output=tmp_path / "python.modelc", dims=dims, verify=False)
        assert all("it was compiled for" in s for s in refusals_in_python(tmp_path / "python.modelc", model))
    else:
        assert "expected 16 to 96 in steps of 8" in said["height off the step"]
        assert {"height below the least", "width above the most", "width huge"} <= said.keys()
