"""What a command imports before it does anything: what takes long is imported where it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
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


def test_what_is_left_out_of_tvm_is_there_for_others() -> None:
    program = (
        "import os, sys\n"
        "environment = dict(os.environ)\n"
        "from modelc.codegen.kernels import compile_nest\n"
        "parts = ('tvm.tirx', 'tvm.relax', 'tvm.s_tir', 'tvm.topi', 'tvm.backend.cuda.ptx')\n"
        "print(*(part in sys.modules for part in parts), environment == os.environ)\n"
        "import tvm\n"
        "print(tvm.s_tir.Schedule.__name__, tvm.relax.Function.__name__, *(part in sys.modules for part in parts))\n"
        "print(hasattr(tvm, 'none'))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert done.stdout.splitlines() == [
        "True False False False False True",
        "Schedule Function True True True True True",
        "False",
    ], done.stderr
