"""Operators that are sampled, scattered or composed of others: through packages, against ONNX Runtime (where it has
them) and the interpreter; their C functions against their meanings in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import packaged
import pytest
from node_models import model_of
from onnx import helper
from opaque_functions import run

import modelc
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model
from modelc.ops.opaque import MEANINGS

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_as_onnx_runtime_computes_them(tmp_path: Path) -> None:
    x, far = floats(2, 4, 9, 11), 3 * floats(2, 2 * 2 * 2, 5, 11)
    corners = np.sort(RNG.uniform(-2, 12, (5, 2, 2)), 1).reshape(5, 4).astype(np.float32)
    pooled = RNG.permutation(8 * 10).reshape(1, 1, 8, 10)[:, :, ::2, ::2]
    feeds = {"x": x, "far": far, "mask": floats(2, 2 * 2, 5, 11), "w": floats(6, 2, 2, 1), "bias": floats(6)}
    feeds |= {
        "rois": corners,
        "image": np.array([1, 0, 1, 1, 0]),
        "square": floats(3, 2, 4, 4),
    }
    feeds |= {"small": floats(1, 1, 4, 5), "places": np.ascontiguousarray(pooled)}
    attrs = {"group": 2, "offset_group": 2, "strides": [2, 1], "pads": [1, 0, 0, 0], "dilations": [1, 2]}
    nodes = [
        helper.make_node("DeformConv", ["x", "w", "far", "bias", "mask"], ["moved"], **attrs),
        helper.make_node("DeformConv", ["x", "w", "far"], ["plain"], **attrs),
        helper.make_node("Det", ["square"], ["det"]),
        helper.make_node("MaxUnpool", ["small", "places"], ["large"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    for k, (pool, samples) in enumerate((("avg", 0), ("avg", 3), ("max", 2))):
        shape = {"output_height": 3, "output_width": 2, "sampling_ratio": samples}
        mode = "half_pixel" if k else "output_half_pixel"
        given = {"mode": pool, "spatial_scale": 0.75, "coordinate_transformation_mode": mode, **shape}
        nodes.append(helper.make_node("RoiAlign", ["x", "rois", "image"], [f"aligned{k}"], **given))
    onnx.save(model_of(nodes, feeds, {"": 19}), tmp_path / "m.onnx")
    result = modelc.compile(tmp_path / "m.onnx", output=tmp_path / "m.modelc", inputs=feeds, database=False)
    assert result.report is not None and len(result.report.outputs) == 7
    assert all(o.distance.passed for o in result.report.outputs)


def test_caches_and_training(tmp_path: Path) -> None:
    """The cache goes on at its beginning; the running statistics move. As ONNX's reference computes it."""
    feeds = {"cache": floats(3, 2, 5, 4), "new": floats(3, 2, 2, 4), "at": np.array([0, 3, 4]), "x": floats(4, 3, 5)}
    feeds |= {name: abs(floats(3)) for name in ("scale", "bias", "mean", "var")}
    nodes = [
        helper.make_node("TensorScatter", ["cache", "new", "at"], ["ring"], mode="circular"),
        helper.make_node("TensorScatter", ["cache", "new"], ["first"]),
        helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["y", "m", "v"],
                         training_mode=1, momentum=0.8),
    ]  # fmt: skip
    model = model_of(nodes, feeds, {"": 24})
    onnx.save(model, tmp_path / "m.onnx")
    found = packaged.run_packaged(tmp_path / "m.onnx", feeds, tmp_path)
    wanted = packaged.run_interpreted(tmp_path / "m.onnx", feeds)
    assert len(found) == 5
    packaged.agree(found, wanted, "package and interpreter")
    ring = feeds["cache"].copy()
    for n, start in enumerate(feeds["at"]):
        for t in range(2):
            ring[n, :, (start + t) % 5] = feeds["new"][n, :, t]
    np.testing.assert_array_equal(found["ring"], ring)
    x = feeds["x"].astype(np.float64)
    np.testing.assert_allclose(found["m"], 0.8 * feeds["mean"] + 0.2 * x.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(found["v"], 0.8 * feeds["var"] + 0.2 * x.var((0, 2)), rtol=1e-5)
    with modelc.load(tmp_path / "model.modelc") as package:
        for wrong in (-1, 5):
            with pytest.raises(modelc.runtime.ModelError, match=f"'at' is {wrong}.*expected a number from 0 to 4"):
                package.run({**feeds, "at": np.array([0, wrong, 0])})


def test_functions_in_c_are_their_meanings(tmp_path: Path) -> None:
    x, rois = floats(2, 3, 7, 5), np.array([[0, 0, 4, 6], [-3, 2, 9, 3], [2, 2, 2, 2], [np.nan, 0, 3, 3]], np.float32)
    cases = [("det", {}, [floats(4, 5, 5)]), ("det", {}, [np.zeros((2, 3, 3))])]
    for half, most, samples in ((True, False, 0), (False, True, 2), (False, False, 0)):
        attrs = {"half_pixel": half, "max": most, "samples": samples, "scale": 0.9, "shape": (4, 3, 2, 3)}
        cases.append(("roi_align", attrs, [x, rois, np.array([0, 1, 1, 0])]))
    for meaning, attrs, arrays in cases:
        (wanted,) = MEANINGS[meaning](attrs, *arrays)
        for cuts in ((0, 1), (0, 0.3, 1)):
            (found,) = run(tmp_path, meaning, attrs, arrays, [np.full(wanted.shape, 7, wanted.dtype)], cuts)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{meaning} {attrs}")


@pytest.mark.parametrize(
    ("node", "shapes", "sentence"),
    [
        (
            ("MaxUnpool", {"kernel_shape": [2]}),
            {"x": (1, 1, 4, 4), "i": (1, 1, 4, 4)},
            "ONNX does not allow",
        ),
        (("TensorScatter", {}), {"x": (1, 3, 4), "i": (1, 5, 4)}, "an update of a part of"),
        (("DeformConv", {}), {"x": (1, 2, 4, 4), "i": (2, 2, 3, 3), "o": (1, 18, 3, 3)}, "offsets of"),
        (("Det", {}), {"x": (2, 3)}, "ONNX does not allow"),
    ],
)
def test_what_does_not_fit_is_refused(node, shapes, sentence: str, tmp_path: Path) -> None:
    feeds = {n: np.zeros(s, np.int64 if node[0] == "MaxUnpool" and n == "i" else np.float32) for n, s in shapes.items()}
    onnx.save(model_of([helper.make_node(node[0], [*feeds], ["y"], **node[1])], feeds, {"": 24}), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=sentence):
        import_model(tmp_path / "m.onnx")
