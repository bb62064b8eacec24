"""The example that the quickstart ends with: boxes from the network's outputs, drawn into the photograph."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import pytest
from repository import ROOT

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install pillow")


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples/faces.py"))


def outputs_with(stride: int, column: int, row: int, score: float, side: float) -> dict[str, np.ndarray]:
    """One face of `side` pixels in a cell of one grid, and the same a cell further, less sure."""
    outputs = {}
    for s in (8, 16, 32):
        count = (640 // s) ** 2
        for name, width in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10)):
            outputs[f"{name}_{s}"] = np.zeros((1, count, width), np.float32)
    for place, sure in ((row * (640 // stride) + column, score), (row * (640 // stride) + column + 1, score - 0.1)):
        outputs[f"cls_{stride}"][0, place] = outputs[f"obj_{stride}"][0, place] = sure
        outputs[f"bbox_{stride}"][0, place] = (0.5, 0.5, np.log(side / stride), np.log(side / stride))
    return outputs


def test_a_face_is_where_the_outputs_say_and_is_there_once(example: dict[str, Any]) -> None:
    (face,) = example["faces_of"](outputs_with(16, 10, 5, 0.9, 80), 2.0)
    assert face.score == pytest.approx(0.9)
    assert face.box == pytest.approx((64, 24, 104, 64))  # (168 - 40) / 2, (88 - 40) / 2, ...
    assert face.landmarks[0] == pytest.approx((80, 40))
    assert example["faces_of"](outputs_with(8, 0, 0, 0.5, 80), 1.0) == []


def test_the_photograph_fits_and_is_drawn_into(example: dict[str, Any]) -> None:
    photo = Image.open(example["PHOTO"]).convert("RGB")
    image, scale = example["fitted"](photo)
    assert image.shape == (1, 3, 640, 640) and image.dtype == np.float32 and scale == 640 / max(photo.size)
    blue, red = (int(v) for v in (image[0, 0].mean(), image[0, 2].mean()))
    means = np.asarray(photo).reshape(-1, 3).mean(0)
    assert (blue < red) == (means[2] < means[0])
    faces = example["faces_of"](outputs_with(16, 10, 5, 0.9, 80), scale)
    changed = np.asarray(example["drawn"](photo, faces)) != np.asarray(photo)
    assert 0 < changed.any(-1).mean() < 0.05
