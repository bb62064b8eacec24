"""The Python loader as it lies in a package: one file that needs nothing of modelc."""

from __future__ import annotations

import ast
from functools import cache

from modelc.package.sources import RUNTIME

_FILES = "modelc.runtime.files"


@cache
def loader_in_one_file() -> str:
    """The text of runtime/loader.py, with that of runtime/files.py in the place of what is imported from it."""
    loader, files = ((RUNTIME / name).read_text() for name in ("loader.py", "files.py"))
    (there,) = (n for n in ast.parse(loader).body if isinstance(n, ast.ImportFrom) and n.module == _FILES)
    first = next(n for n in ast.parse(files).body if isinstance(n, ast.Import))  # docstring and __future__ stay out
    lines, own = loader.splitlines(keepends=True), files.splitlines(keepends=True)
    return "".join([*lines[: there.lineno - 1], *own[first.lineno - 1 :], *lines[there.end_lineno :]])
