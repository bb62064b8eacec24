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
