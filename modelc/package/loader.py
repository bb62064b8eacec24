"""The loaders as they lie in a package: one file in Python, or one in JavaScript, that needs nothing of modelc."""

from __future__ import annotations

import ast
import re
from functools import cache

from modelc.package.form import Form
from modelc.package.sources import RUNTIME

_ROOM = "modelc.runtime."


@cache
def loader_in_one_file() -> str:
    """The text of runtime/loader.py, with that of its neighbours in the place of what is imported from them."""
    loader = (RUNTIME / "loader.py").read_text()
    lines = loader.splitlines(keepends=True)
    for there in reversed(ast.parse(loader).body):
        if isinstance(there, ast.ImportFrom) and there.module and there.module.startswith(_ROOM):
            own = (RUNTIME / f"{there.module.removeprefix(_ROOM)}.py").read_text()
            _, future, *_ = ast.parse(own).body  # a docstring, and the import from __future__: both stay out
            lines[there.lineno - 1 : there.end_lineno] = own.splitlines(keepends=True)[future.lineno :]
    return "".join(lines)


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
