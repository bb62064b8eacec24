"""Puts modelc/runtime into the wheel of modelc-runtime."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Renamed(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(tempfile.mkdtemp())
        write_renamed = runpy.run_path(str(Path(self.root, "rename.py")))["write_renamed"]
        for path in write_renamed(folder):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))
