"""Imported first by scripts that use modelc as it is here, or what they share with the tests (tests/helpers)."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/helpers")]
