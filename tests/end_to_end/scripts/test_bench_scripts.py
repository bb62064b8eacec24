"""scripts/ansor_ops.py has the paper's cases, and the scripts that time them run from end to end."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import ansor_ops
import bench_networks
import bench_ops
import networks
import numpy as np
import onnx
import pytest
from repository import ROOT

SMALL_FLOPS = 0.3e9
CASES = {case.name: case for case in ansor_ops.cases()}
needs_openvino = pytest.mark.skipif(
    find_spec("openvino") is None, reason="openvino is not installed: modelc-compiler[bench]"
)


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / f"scripts/{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=900)


def test_layouts_are_compared_on_windows_and_products() -> None:
    done = script("layout_table", "DEP-4-b1", "32x16x32", "--rounds", 1, "--markdown")
    assert done.returncode == 0, done.stderr
    windows, products = (
        [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith(f"| {case} ")]
        for case in ("DEP-4-b1", "32x16x32")
    )
    header, *_ = done.stdout.splitlines()
    kinds = header.strip("| ").split(" | ")[1:-3]
    assert kinds[:2] == ["last", "rows"] and any(kind.startswith("blocked ") for kind in kinds)
    *cells, wins, ratio, by_price = windows[0][1:]
    assert all(float(cell.partition(" ")[0]) > 0 for cell in cells) and len(cells) == len(kinds)
    assert wins in kinds and by_price in kinds and float(ratio) >= 1
    assert products and "swapped" in done.stdout


@needs_openvino
def test_a_network_that_changes_is_optimized_and_run_in_every_way() -> None:
    sizes = ("--widths", 0.25, 0.5, "--image", 32, "--images", 1000, "--seconds", 0.1)
    done = script("changing_network", *sizes, "--budget", 5)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    for way in ("compile", "tune", "ort", "openvino"):
        assert all(float(cell.rstrip(",")) > 0 for cell in rows[way][:4])


# --- the cases ----------------------------------------------------------------------------------------------------


def test_the_cases_are_as_many_as_the_papers() -> None:
    counts = Counter((case.operator in ansor_ops.SUBGRAPHS, case.operator, case.batch) for case in CASES.values())
    assert set(counts.values()) == {4}  # shapes
    assert sum(count for (subgraph, _, _), count in counts.items() if not subgraph) == 80
    assert sum(count for (subgraph, _, _), count in counts.items() if subgraph) == 16
    assert {case.batch for case in CASES.values()} == {1, 16}
    assert ansor_ops.SHAPES.keys() == ansor_ops.BUILDERS.keys()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.batch == 1])
def test_a_case_is_a_valid_model(name: str) -> None:
    model, flops = CASES[name].build()
    onnx.checker.check_model(model, full_check=True)
    (output,) = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output
    assert CASES[name].batch == output.type.tensor_type.shape.dim[0].dim_value
    if flops < SMALL_FLOPS:
        (array,) = networks.run(model, networks.random_inputs(model)).values()
        assert list(array.shape) == [dim.dim_value for dim in output.type.tensor_type.shape.dim]
        assert np.isfinite(array).all() and array.any()


def test_operations_of_a_run() -> None:
    """Of ResNet's first layer, a matrix product, a transposed convolution and a norm; 16 times as many for 16."""
    expected = {
        "C2D-1-b1": 2 * 64 * 112 * 112 * 3 * 49,
        "GMM-3-b1": 2 * 512**3,
        "GRP-4-b1": 2 * 512 * 49 * 128 * 9,
        "T2D-1-b1": 2 * 512 * 4 * 4 * 256 * 16,
        "NRM-1-b1": 2 * 256**2,
    }
    assert {name: CASES[name].build()[1] for name in expected} == expected
    assert CASES["CAP-1-b16"].build()[1] == 16 * CASES["CAP-1-b1"].build()[1]


def test_a_capsule_convolution_multiplies_capsules() -> None:
    """The model of one Conv against the sum that the paper's authors write, at one place of the output."""
    model, _ = CASES["CAP-4-b1"].build()
    (weight,) = (onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "weight")
    feeds = networks.random_inputs(model)
    y = networks.run(model, feeds)["output"]
    window = feeds["x"][0, :, :, :, 2:5, 3:6]  # of output row 3, column 4
    expected = np.einsum("ikcrs,jokcrs->ijo", window, weight.reshape(4, 16, 4, 16, 3, 3))
    np.testing.assert_allclose(y[0, :, :, :, 3, 4], expected, rtol=1e-3, atol=1e-4)


# --- the scripts --------------------------------------------------------------------------------------------------


@needs_openvino
def test_an_operator_from_end_to_end(tmp_path: Path) -> None:
    found = script("bench_ops", "--only", "GMM-1-b1$", "--seconds", 0.1, "--json", tmp_path / "f.json")
    assert found.returncode == 0, found.stderr
    for words in ("GMM-1-b1", "128 128 128", "vs openvino", "GFLOP/s", "1 of 1 cases, 1 thread(s)", "onnxruntime"):
        assert words in found.stdout
    data = json.loads((tmp_path / "f.json").read_text())
    (case,) = data["cases"]
    assert not data["failures"] and case["peak_gflops"]["float32"] > 0
    assert set(case["us"]) == {"modelc", "ort", "openvino"} and case["flops"] == 2 * 128**3
    assert case["best"] == min(case["ratio"].values())
    assert case["gflops"] == pytest.approx(case["flops"] / case["us"]["modelc"] * 1e-3)
    assert case["peak_share"] == pytest.approx(case["gflops"] / case["peak_gflops"]["float32"])


@pytest.mark.slow  # other scripts time networks in CI
def test_a_network_with_one_and_two_threads(tmp_path: Path) -> None:
    networks.write(networks.bert(1, 32, 2, tokens=16, vocabulary=100), tmp_path / "exported.onnx")
    options = ["--against", "ort", "--threads", 1, 2, "--seconds", 0.1, "--json", tmp_path / "f.json"]
    names = ["--only", "exported|minilm", "--also", "exported"]
    found = script("bench_networks", *names, "--dir", tmp_path, *options)
    assert found.returncode == 0, found.stderr
    assert "speed-up of 2 threads over one" in found.stdout and "1 of 2 networks" in found.stdout
    assert "minilm failed" in found.stdout and "python scripts/fetch_models.py minilm" in found.stdout
    data = json.loads((tmp_path / "f.json").read_text())
    runs = data["cases"][0]["runs"]
    assert [run["threads"] for run in runs] == [1, 2] and all(run["peak_share"] > 0 for run in runs)
    assert [one["case"] for one in data["failures"]] == ["minilm"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="this machine does not run packages for x86-64-v3")
def test_every_product_of_bytes_beside_what_its_unit_reaches(tmp_path: Path) -> None:
    options = ("--target", "x86-64-v3", "--shape", "1,64,40", "--seconds", 0.1, "--json", tmp_path / "f.json")
    timed = script("bench_int8", *options, "--against", "ort")
    assert timed.returncode == 0, timed.stderr
    data = json.loads((tmp_path / "f.json").read_text())
    assert data["shape"] == [1, 64, 40] and not data["failures"]
    assert [case["case"] for case in data["cases"]] == ["avx2-int8x64", "avx2-int8x127", "avx2-int16"]
    for case in data["cases"]:
        assert case["peak_share"] == pytest.approx(case["gops"] / case["peak_gops"])
        assert case["gops"] == pytest.approx(2e-3 * 64 * 40 / case["us"]["modelc"]) and case["kernel_share"] > 0


def test_the_networks_are_known() -> None:
    assert len(set(bench_networks.NAMES)) == 15
    assert set(bench_networks.NAMES) <= {*networks.NETWORKS, *bench_networks.catalogue()}


@pytest.mark.parametrize(
    "options, words",
    [
        (["--only", "C9D"], "no case matches 'C9D'; the operators are C1D"),
        (["--only", "("], "is no regular expression"),
        (["--threads", 0], "0 is not from 1 to 1024"),
        (["--against", "tflite"], "'tflite' is unknown; known are ort, openvino"),
        (["--json", "/nowhere/f.json", "--against", "ort"], "/nowhere/f.json cannot be written"),
    ],
)
def test_refusals(options: list, words: str) -> None:
    found = script("bench_ops", *options)
    assert found.returncode == 2 and words in " ".join(found.stderr.split()) and "Traceback" not in found.stderr


# --- what they report ---------------------------------------------------------------------------------------------


def row(case: str, **us: float) -> bench_ops.Row:
    ratio = {name: time / us["modelc"] for name, time in us.items() if name != "modelc"}
    return {"case": case, "us": us, "ratio": ratio, "best": min(ratio.values())}


def test_geometric_means() -> None:
    assert bench_ops.geometric_mean([0.5, 2, 8]) == pytest.approx(2)
    assert bench_ops.geometric_mean([]) is None


def test_a_case_is_small_if_some_peer_is_fast() -> None:
    assert bench_ops.is_small(row("a", modelc=500.0, ort=119.0, openvino=800.0))
    assert not bench_ops.is_small(row("a", modelc=100.0, ort=121.0, openvino=800.0))


def test_a_failure_does_not_end_the_run(tmp_path: Path) -> None:
    def work(name: str, say: bench_ops.Say) -> bench_ops.Row:
        if name == "wrong":
            raise bench_ops.VerificationError("it departs")
        if name == "broken":
            raise IndexError("list index out of range")
        if name == "stopped":
            raise KeyboardInterrupt
        return row(name, modelc=1.0, ort=2.0)

    path = tmp_path / "f.json"
    rows, failures = bench_ops.attempt(["a", "wrong", "broken", "b", "stopped", "c"], work, path, {"seconds": 1})
    assert [one["case"] for one in rows] == ["a", "b"]
    assert [(one["case"], one["verification"]) for one in failures] == [("wrong", True), ("broken", False)]
    assert failures[1]["error"] == "IndexError: list index out of range"
    assert json.loads(path.read_text()) == {"seconds": 1, "cases": rows, "failures": failures}


def test_a_failed_verification_is_exit_code_1(monkeypatch, in_process) -> None:
    def measure(*_: object) -> bench_ops.Row:
        raise bench_ops.VerificationError("it departs")

    monkeypatch.setattr(bench_ops, "measure", measure)
    found = in_process(bench_ops.main, "--only", "GMM-1-b1$", "--against", "ort")
    assert found.returncode == 1 and "GMM-1-b1 failed verification: it departs" in found.stdout


def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    groups = {"C2D b1": [row("a", modelc=1.0, ort=2.0), row("b", modelc=2.0, ort=1.0)]}
    bench_ops.plot(tmp_path / "f.png", "operators", groups, ["ort"])
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
