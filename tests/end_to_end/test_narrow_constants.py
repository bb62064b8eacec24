"""Constants in float32 that fewer bits hold exactly, and how packages make them of these."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from small_model import save

import modelc
from modelc.compile.config import load_config
from modelc.errors import VerificationError
from modelc.ir.block import Buffer
from modelc.ir.layout import Layout
from modelc.ir.narrow import LEAST_BYTES, narrow_of
from modelc.ir.pack import pack_constant
from modelc.package import PackageSpec, glue, read_package
from modelc.runtime import load
from modelc.space.opening import widening_of

SHAPES = ((48, 96), (96, 48), (4, 40, 40), (24, 8, 3, 9))


@st.composite
def constants(draw: st.DrawFn) -> np.ndarray:
    """Whole numbers of a byte, signed or not, or less a zero point, times factors by some dimensions."""
    shape = draw(st.sampled_from(SHAPES))
    axes = draw(st.sampled_from([(), *((dim,) for dim in range(len(shape))), (0, 1)[: len(shape) - 1]]))
    low = draw(st.sampled_from([-128, -127, 0, -77]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    numbers = rng.integers(low, low + 256, shape)
    factors = rng.uniform(1e-4, 3, [n if dim in axes else 1 for dim, n in enumerate(shape)]).astype(np.float32)
    return (numbers.astype(np.float32) * factors) + np.float32(0)  # without zeros that have a sign


@settings(max_examples=60, deadline=None)
@given(constants(), st.booleans())
def test_what_is_narrow_is_the_constant_bit_for_bit(constant: np.ndarray, is_split: bool) -> None:
    narrow = narrow_of(constant)
    if narrow is None:  # slices that have a factor are too short, or their steps are not to be seen
        assert min(constant.shape) < 48 or constant.ndim > 2
        return
    assert narrow.numbers.itemsize < 4 and np.array_equal(narrow.wide(), constant)
    rank = constant.ndim
    layout = Layout().then("reorder", *reversed(range(rank)))
    layout = (
        layout.then("pad", rank - 1, 0, -constant.shape[0] % 16).then("split", rank - 1, 16) if is_split else layout
    )
    buffer = Buffer("w", "float32", constant.shape)
    widening = widening_of(narrow, buffer, layout)
    assert widening is not None
    at = sum(
        np.arange(n).reshape(-1, *(1,) * (len(widening.extents) - d - 1)) * widening.strides[d]
        for d, n in enumerate(widening.extents)
    )
    wide = widening.numbers.reshape(widening.extents).astype(np.float32) * widening.factors[at]
    assert np.array_equal(wide.reshape(-1), pack_constant(constant, buffer, layout).reshape(-1))


def test_what_is_not_narrow() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((96, 96)).astype(np.float32)
    whole = rng.integers(-127, 128, (96, 96)).astype(np.float32)
    signed = np.where(whole == 0, np.float32(-0.0), whole * np.float32(0.3))
    assert narrow_of(weights) is None and narrow_of(np.where(weights > 3, np.inf, whole)) is None
    assert narrow_of(signed.astype(np.float32)) is None and narrow_of(whole[: LEAST_BYTES // 4 // 96]) is None
    halves = narrow_of(weights.astype(np.float16).astype(np.float32))
    assert halves is not None and halves.numbers.dtype == np.float16
    off_by_one_bit = whole * np.float32(0.3)
    off_by_one_bit[5, 5] = np.nextafter(off_by_one_bit[5, 5], np.float32(9))
    assert narrow_of(off_by_one_bit) is None


@pytest.fixture(scope="module")
def spelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a table in bytes, read behind Cast and Mul; a product by bytes behind Cast, Mul and Transpose; another by
    halves; and a convolution whose weights are bytes."""
    rng = np.random.default_rng(0)
    constants = {
        "table": rng.integers(-127, 128, (400, 128)).astype(np.int8),
        "rows": (rng.random((400, 1)) / 99).astype(np.float32),
        "w": rng.integers(-127, 128, (128, 128)).astype(np.int8),
        "by": (rng.random((128, 1)) / 999).astype(np.float32),
        "h": (rng.standard_normal((128, 288)) / 12).astype(np.float16),
        "k": rng.integers(-127, 128, (64, 32, 3, 3)).astype(np.int8),
        "s": np.float32(0.001),
        "picture": np.array([-1, 32, 3, 3], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Cast", ["table"], ["t"], to=1),
        node("Mul", ["t", "rows"], ["scaled"]),
        node("Gather", ["scaled", "ids"], ["x"]),
        node("Cast", ["w"], ["wide"], to=1),
        node("Mul", ["wide", "by"], ["weights"]),
        node("Transpose", ["weights"], ["turned"], perm=[1, 0]),
        node("MatMul", ["x", "turned"], ["y"]),
        node("Cast", ["h"], ["halves"], to=1),
        node("MatMul", ["y", "halves"], ["z"]),
        node("Reshape", ["z", "picture"], ["p"]),
        node("Cast", ["k"], ["kernel"], to=1),
        node("Mul", ["kernel", "s"], ["filters"]),
        node("Conv", ["p", "filters"], ["out"], pads=[1, 1, 1, 1]),
    ]
    model = tmp_path_factory.mktemp("spelled") / "net.onnx"
    return save(model, nodes, {"ids": ([16], TensorProto.INT64)}, {"out": [16, 64, 3, 3]}, constants)


def test_weights_of_few_bits_stay_so_whatever_spells_them(spelled: Path, tmp_path: Path) -> None:
    made = modelc.compile(spelled, output=tmp_path / "opened", database=False)
    stored = modelc.compile(
        spelled, output=tmp_path / "stored", database=False, params="stored", max_params="100x", verify=False
    )
    assert made.report is not None and made.report.passed
    assert made.params_bytes < 1.2 * made.file_bytes < 0.5 * stored.params_bytes
    kinds = {
        constant.dtype for constant in read_package(tmp_path / "opened").manifest.made if hasattr(constant, "dtype")
    }
    assert kinds == {"int8", "float16"}
    ids = np.random.default_rng(1).integers(0, 400, 16)
    with load(tmp_path / "opened") as opened, load(tmp_path / "stored") as whole:
        assert np.array_equal(opened.run({"ids": ids})["out"], whole.run({"ids": ids})["out"])


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (r"(made_strides_\d+\[\] = \{\s+)\d+", r"\g<1>0"),
        (r"(\.source = )\d+(u, \.offset = 0u)", r"\g<1>64\2"),
        (r"(\.factors = )(\d+)", r"\g<1>0"),
    ],
)
def test_what_opening_makes_wrong_is_found(
    spelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, wrong: str
) -> None:
    """Mutants of the tables that the runtime makes constants by."""
    made = glue._made

    def mutated(spec: PackageSpec) -> str:
        text, count = re.subn(place, wrong, right := made(spec), count=1)
        assert count and text != right
        return text

    monkeypatch.setattr(glue, "_made", mutated)
    plain = load_config().allowing(winograd=False, strassen=False)
    with pytest.raises(VerificationError, match="is wrong"):
        modelc.compile(spelled, output=tmp_path / "p", database=False, config=plain)
    assert not list(tmp_path.iterdir())
