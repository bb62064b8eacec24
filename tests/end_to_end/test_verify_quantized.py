"""What verified means for quantized models: single roundings at ties may fall either way, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from meaning_in_float64 import in_float64
from other_reading import read_as
from quantized_models import TARGETS, changed, clipped, conv_net, run_here

import modelc
from modelc.compile.verification import blueprints_of
from modelc.frontend.witness.surgery import Rounding, Span, cut, quantizes
from modelc.package import read_package
from modelc.verify.engine import Engine
from modelc.verify.kernels.blueprint import Blueprint
from modelc.verify.pieces import judged
from modelc.verify.report import Report
from modelc.verify.verdict import verify_outputs

X = np.random.default_rng(1).uniform(-4, 4, (1, 8, 8, 8)).astype(np.float32)


@dataclass(frozen=True)
class Compiled:
    """A package of `model`, and how it was made."""

    model: Path
    path: Path
    blueprints: tuple[Blueprint, ...]

    def verified(self, other: Path, per_layer: bool = False) -> Report:
        """What it is found to be where its kernels are known, and ONNX Runtime reads another model."""
        with read_as(other):
            return verify_outputs(self.path, self.model, {"x": X}, blueprints=self.blueprints, per_layer=per_layer)


@pytest.fixture(scope="module", params=TARGETS)
def right(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    model = conv_net(tmp_path_factory.mktemp("quantized") / "right.onnx")
    path = model.with_name("p.modelc")
    modelc.compile(model, run_here(request.param), path, database=False)
    return Compiled(model, path, blueprints_of(read_package(path), model))


@pytest.mark.sweep(1)
def test_a_right_package_is_right_kernel_by_kernel(right: Compiled) -> None:
    report = right.verified(right.model, per_layer=True)
    assert report.passed and "without optimisations" in report.reference
    assert len(report.layers) >= 3 and all(layer.passed for layer in report.layers)
    assert len(report.kernels) >= 4 and all(kernel.samples and kernel.worst < 0.7 for kernel in report.kernels)
    truth = in_float64(right.model, {"x": X})["y"]
    assert truth.dtype == np.float64 and len(np.unique(truth)) > 8


def test_a_package_of_another_model_names_the_first_kernel_that_departs(tmp_path: Path, right: Compiled) -> None:
    report = right.verified(changed(right.model, tmp_path / "other.onnx", "b1_q", lambda b: b + 100))
    assert not report.passed and report.first_wrong is None
    assert "the first kernel that departs on the same inputs is " in report.sentence()


MUTANTS: dict[str, Callable[[Path, Path], Path]] = {
    "zero point": lambda m, p: changed(m, p, "xd_z", lambda z: z - 1),
    "scale of activations": lambda m, p: changed(m, p, "ed_s", lambda s: s * 1.01),
    "scale of one channel": lambda m, p: changed(m, p, "w1_s", lambda s: s * np.where(np.arange(8) == 3, 1.02, 1)),
    "axis of scales": lambda m, p: changed(m, p, "w1", axis=1),
    "saturation": lambda m, p: clipped(m, p, "ad_q", -5.0, 5.0),
}


@pytest.mark.parametrize("what", MUTANTS)
@pytest.mark.sweep(2)
def test_what_is_quantized_otherwise_is_found(tmp_path: Path, right: Compiled, what: str) -> None:
    """One of the two is wrong: a kernel departs on the very inputs that the other's piece got."""
    layers = right.verified(MUTANTS[what](right.model, tmp_path / "other.onnx"), per_layer=True).layers
    assert layers and not all(layer.passed for layer in layers)


# --- the rule -----------------------------------------------------------------------------------------------------

ROUNDED = Span(Rounding("x", "scale", "zero"), 0)


def of_real(real: np.ndarray) -> Callable[[str], np.ndarray]:
    """What a rounding reads that rounds `real` + 3 in steps."""
    values = {"x": real * 0.5, "scale": np.float32(0.5), "zero": np.uint8(3)}
    return lambda name: np.asarray(values[name])


def passes(ours: list[int], real: list[float], span: Span = ROUNDED) -> tuple[bool, int]:
    reference = np.clip(np.rint(np.array(real)) + 3, 0, 255).astype(np.uint8)
    found, steps = judged(np.array(ours, np.uint8), reference, span, of_real(np.array(real)), 1e-3, 1e-4)
    return found.passed, steps


def test_a_number_at_a_tie_may_fall_either_way() -> None:
    assert passes([5, 7], [2.49, 4.0]) == (True, 0)
    assert passes([6, 7], [2.49, 4.0]) == (True, 1)
    assert passes([6, 7], [2.4, 4.0]) == (False, 0)
    assert passes([7, 7], [2.49, 4.0]) == (False, 0)
    assert passes([255, 0], [300.0, -9.0]) == (True, 0)
    assert passes([254, 0], [300.0, -9.0]) == (False, 0)


def test_few_numbers_may_follow_from_a_tie_that_no_kernel_writes() -> None:
    real = np.full(4000, 2.2)
    ours = np.full(4000, 5)
    ours[:3] = 6
    assert not passes(list(ours), list(real))[0]
    assert passes(list(ours), list(real), Span(ROUNDED.rounding, 1))[0]
    ours[:5] = 6
    assert not passes(list(ours), list(real), Span(ROUNDED.rounding, 1))[0]
    ours[:5] = (8, 5, 5, 5, 5)
    assert not passes(list(ours), list(real), Span(ROUNDED.rounding, 1))[0]


def test_pieces_of_a_model_get_what_they_are_given(tmp_path: Path, right: Compiled) -> None:
    assert quantizes(right.model)
    given = {"xd_q": np.full((1, 8, 8, 8), 9, np.uint8), "c": np.full((1, 8, 8, 8), 1.0, np.float32)}
    given["rd_q"] = given["xd_q"]
    made = cut(right.model, given, tmp_path / "pieces.onnx", given)
    assert made.spans["xd_q"].rounding is not None and made.spans["xd_q"].rounds == 0
    assert made.spans["c"].rounding is None and made.spans["c"].rounds == 0
    with Engine("ort-plain", tmp_path / "pieces.onnx") as engine:
        found = engine.run({"x": X, **{there: given[name] for name, there in made.given.items()}})
    assert (found["rd_q"] == round(1 / 0.0197) + 8).all()  # of c as it was given, and not as it is computed
    assert len(np.unique(found["xd_q"])) > 100  # is still what the model computes
    assert np.ptp(found["c"]) > 0 and found["c"].shape == (1, 8, 8, 8)
    assert "rd_q" not in made.given  # nothing reads it
    alone = cut(right.model, given, tmp_path / "piece.onnx", ["rd_q"])
    assert list(alone.given) == ["c"] and {"rd_q"} == {*alone.spans}
