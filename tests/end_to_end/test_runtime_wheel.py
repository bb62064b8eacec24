"""modelc-runtime: the loader without modelc, and a script for ONNX Runtime that changes its import alone."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save
from repository import ROOT
from tiny_package import COLUMNS, NATIVE_TRIPLE, object_for, spec_of

from modelc.package import Argument, Form, Plan, Step, TensorInfo, write_package

SCRIPT = """\
import sys
import numpy as np
import MODULE as ort

options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
(given,), (taken,) = session.get_inputs(), session.get_outputs()
x = np.arange(np.prod(given.shape), dtype=np.float32).reshape(given.shape)
(y,) = session.run([taken.name], {given.name: x})
binding = session.io_binding()
binding.bind_cpu_input(given.name, x)
binding.bind_output(taken.name)
session.run_with_iobinding(binding)
assert np.array_equal(binding.copy_outputs_to_cpu()[0], y)
print(given.name, given.type, given.shape, taken.name)
y.tofile(sys.argv[2])
"""


def test_it_has_modelcs_version_and_numpy_alone() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    ours, its = (
        tomllib.loads((ROOT / name).read_text())["project"] for name in ("pyproject.toml", "runtime/pyproject.toml")
    )
    (numpy,) = its["dependencies"]
    assert its["version"] == ours["version"] and numpy in ours["dependencies"]
    assert its["requires-python"] == ours["requires-python"]


def test_a_script_for_onnx_runtime_changes_its_import(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "runtime/rename.py"))["write_renamed"](tmp_path / "site")
    row = (1, COLUMNS)
    weights = np.linspace(0.5, 2, COLUMNS, dtype=np.float32)
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, row) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:], [numpy_helper.from_array(weights, "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "net.onnx")
    arguments = (Argument("input", 0), Argument("params", offset=64), Argument("output", 0))
    plan = Plan(
        inputs=(TensorInfo("x", "float32", row),),
        outputs=(TensorInfo("y", "float32", row),),
        steps=(Step("scale", "net_scale", arguments, 1),),
    )
    spec = spec_of(form=Form.of("net"), variants=(plan,), objects={"b": object_for(NATIVE_TRIPLE, "net_")})
    package = write_package(spec, tmp_path / "net.modelc").path
    said, results = [], []
    for module, model in (("onnxruntime", tmp_path / "net.onnx"), ("modelc_runtime", package)):
        # A folder of its own, and nothing of modelc's to be had.
        code = "import sys\nsys.modules['modelc'] = None\n" + SCRIPT.replace("MODULE", module)
        environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
        command = [sys.executable, "-c", code, str(model), str(tmp_path / f"{module}.bin")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        results.append(np.fromfile(tmp_path / f"{module}.bin", np.float32))
    assert said[0] == said[1] and np.array_equal(*results)
