"""What a command imports before it does anything: what takes long is imported where it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import small_model as small
from repository import ROOT

HEAVY = ("tvm", "scipy", "onnx", "onnxruntime", "jsonschema", "rich", "numpy", "yaml")


def heavy_modules(*arguments: str) -> set[str]:
    """Those of HEAVY that a process has imported when `modelc` with these arguments ends."""
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('imported', *({set(HEAVY)} & sys.modules.keys())))\n"
        "from modelc.__main__ import main\n"
        "main()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    word, *modules = done.stdout.splitlines()[-1].split()
    assert word == "imported"
    return set(modules)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["compile", "--help"], ["tune", "--help"]])
def test_version_and_help_import_nothing_heavy(arguments: list[str]) -> None:
    assert heavy_modules(*arguments) == set()


@pytest.mark.parametrize("own", [True, False])
def test_tvm_is_whole_where_the_process_is_not_our_own(own: bool) -> None:
    program = (
        "import os, sys\n"
        "from modelc.python_worker import own_process\n"
        f"if {own}: own_process()\n"
        "environment = dict(os.environ)\n"
        "from modelc.codegen.kernels import compile_nest\n"
        "parts = ('tvm.tirx', 'tvm.relax', 'tvm.s_tir', 'tvm.topi', 'tvm.backend.cuda.ptx')\n"
        "print(*(part in sys.modules for part in parts), environment == os.environ)\n"
        "import tvm.relax\n"
        "print(tvm.relax.Function.__name__, tvm.s_tir.Schedule.__name__)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    parts = "False " * 4 if own else "True " * 4
    assert done.stdout == f"True {parts}True\nFunction Schedule\n", done.stderr


def test_who_lowers_nothing_imports_no_tvm(tmp_path: Path) -> None:
    model = str(small.model())
    assert {"tvm", "scipy", "jsonschema", "onnxruntime", "rich"}.isdisjoint(
        heavy_modules("compile", model, "--shape", "x=1,3,20,24", "--stop-after", "schedule", "--no-database")
    )
    assert "tvm" not in heavy_modules("verify", str(small.package()), "--against", model)


def test_importing_the_runtime_loads_nothing_else() -> None:
    program = (
        "import sys, modelc.runtime\n"
        "assert 'numpy' not in sys.modules\n"
        "modelc.runtime.load, modelc.runtime.InferenceSession, modelc.runtime.as_bits\n"
        "known = {*sys.stdlib_module_names, 'numpy', 'modelc'}\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('tvm', 'onnx', 'yaml', 'click', 'scipy')))\n"
        "print(sorted(m for m in sys.modules if m.startswith('modelc')))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert done.stdout.splitlines() == [
        "[]",
        "['modelc', 'modelc.runtime', 'modelc.runtime.bits', 'modelc.runtime.bound', 'modelc.runtime.files', "
        "'modelc.runtime.free', 'modelc.runtime.library', 'modelc.runtime.loader', 'modelc.runtime.options', "
        "'modelc.runtime.providers', 'modelc.runtime.refusals', 'modelc.runtime.session', 'modelc.runtime.shown', "
        "'modelc.runtime.tensors', 'modelc.runtime.values']",
    ], done.stderr
