"""The loaders as they lie in a package: one file in Python, or one in JavaScript, that needs nothing of modelc."""

from __future__ import annotations

import ast
import re
from functools import cache

from modelc.package.form import Form
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


def module_loader(form: Form) -> str:
    """The text of PREFIX.mjs."""
    return (RUNTIME / "model.mjs").read_text().replace("PREFIX", form.prefix)


@cache
def module_functions() -> frozenset[str]:
    """The functions of C that the loader in JavaScript gives to a module."""
    text = (RUNTIME / "model.mjs").read_text()
    words = text[text.index("const C = ") : text.index("// ---- end of C")]
    names = re.findall(r"^    (\w+)(?:: |\()", words, flags=re.MULTILINE)
    real = re.search(r'"([a-z0-9 ]+)"', words)
    both = real[1].split() if real else []
    return frozenset([*names, *both, *(f"{name}f" for name in both)])
