"""Where ONNX Runtime's own products of bytes saturate, verify and bench say how far off its outputs are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_model as small
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from quantized_models import run_here

import modelc
from modelc.cli import main
from modelc.package import read_package
from modelc.verify import saturation as module
from modelc.verify.engine import Engine, EngineError
from modelc.verify.saturation import saturates, saturation

Arrays = dict[str, NDArray[np.generic]]
WORDS = "ONNX Runtime's products of bytes saturate on this CPU: its outputs are off by"
K, N, ROWS = 96, 24, 8
WEIGHTS = np.random.default_rng(0).integers(-127, 128, (K, N)).astype(np.int8)
X = np.random.default_rng(1).integers(0, 256, (ROWS, K)).astype(np.uint8)
EXACT = X.astype(np.int32) @ WEIGHTS.astype(np.int32)
REALLY = """
import numpy as np, sys
from pathlib import Path
from modelc.frontend.witness.unsigned import largest_product
from modelc.verify.worker import ENGINES
feed, exact = largest_product(Path(sys.argv[1]))
for engine in ("ort", "ort-exact", "ort-plain"):
    print(engine, np.array_equal(ENGINES[engine](sys.argv[1], 1).run(feed)["y"], exact))
"""


def saturated_sums() -> NDArray[np.int32]:
    """What pairs of products come to that are added in 16 bits."""
    products = X.astype(np.int32)[:, :, None] * WEIGHTS.astype(np.int32)
    return np.clip(products[:, ::2] + products[:, 1::2], -32768, 32767).sum(1, dtype=np.int32)


class Saturating(Engine):
    """ONNX Runtime as it is on a CPU without VNNI."""

    def run(self, inputs: Arrays) -> Arrays:
        return {"y": saturated_sums()} if self.engine == "ort" else super().run(inputs)


class Refusing(Engine):
    def __init__(self, engine: str, path: Path, threads: int = 1, timed: bool = True) -> None:
        raise EngineError(f"{engine} cannot open")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bytes") / "product.onnx"
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [ROWS, K])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [ROWS, N])],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def package(model: Path) -> Path:
    modelc.compile(model, run_here("native"), path := model.with_suffix(".modelc"), database=False, verify=False)
    return path


@pytest.fixture
def without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "saturates", lambda: True)
    monkeypatch.setattr(module, "Engine", Saturating)


@pytest.mark.usefixtures("without_vnni")
def test_verify_says_both_errors(model: Path, package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(inputs := model.with_name("x.npz"), x=X)
    with pytest.raises(SystemExit) as ending:
        main(["verify", str(package), "--against", str(model), "--inputs", str(inputs), "--json"])
    said = capsys.readouterr()
    off = np.sqrt(np.mean((saturated_sums() - EXACT) ** 2.0) / np.mean(EXACT**2.0))
    (note,) = [note for note in json.loads(said.out)["summary"]["notes"] if note.startswith(WORDS)]
    assert note == f"{WORDS} {off:.2g}, the package's by 0, from exact sums (relative RMS)"
    assert ending.value.code == 0 and note in " ".join(said.err.split()) and off > 0.01


@pytest.mark.usefixtures("without_vnni")
def test_bench_says_them_beside_onnx_runtime_alone(model: Path, package: Path) -> None:
    for against, count in (("ort", 1), ("ort-exact", 0)):
        notes = modelc.bench(package, against, model, seconds=0.05, inputs={"x": X})["notes"]
        assert sum(note.startswith(WORDS) for note in notes) == count


def test_nothing_is_said_where_nothing_saturates(model: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where the probe says no, nor where it says yes and the model's sums are the same."""
    plan = read_package(package).manifest.variants[0]
    monkeypatch.setattr(module, "Engine", Refusing)
    monkeypatch.setattr(module, "saturates", lambda: False)
    assert not saturation(model, {"x": X}, plan, {"y": EXACT})
    monkeypatch.setattr(module, "saturates", lambda: True)
    assert not saturation(small.model(), {}, plan, {}), "no product of bytes"
    assert "is not known: ort cannot open" in saturation(model, {"x": X}, plan, {"y": EXACT})
    monkeypatch.setattr(module, "Engine", Engine)
    few = {"x": np.minimum(X, 31)}
    assert not saturation(model, few, plan, {"y": few["x"].astype(np.int32) @ WEIGHTS.astype(np.int32)})


def test_the_probe_says_what_this_cpu_does(model: Path, package: Path) -> None:
    notes = modelc.verify(package, model, inputs={"x": X}).notes
    assert any(note.startswith(WORDS) for note in notes) == saturates()


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
def test_onnx_runtime_saturates_on_a_cpu_without_vnni(tmp_path: Path) -> None:
    """Valgrind's CPU has AVX2 and no VNNI."""
    command = ["valgrind", "-q", "--tool=none", sys.executable, "-c", REALLY, str(tmp_path / "m.onnx")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:3] == ["ort False", "ort-exact True", "ort-plain True"]
