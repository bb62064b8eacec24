"""Functions of LLVM's own text, for what TIR cannot say; LLVM inlines them.

TVM declares that sums of integers do not overflow, which LLVM may rely on, has no types for bfloat16, and has no branch
inside an expression. What an expression calls is noted while it is lowered and imported with the function around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from modelc.codegen.lean_tvm import tvm, tx


@dataclass
class Imports:
    """What is called: texts by function name, each a module of its own."""

    texts: dict[str, str] = field(default_factory=dict)

    def around(self, body: Any) -> Any:
        """`body` with these functions."""
        for name in sorted(self.texts):
            body = tx.AttrStmt(tx.IntImm("int32", 0), "pragma_import_llvm", tvm.ir.StringImm(self.texts[name]), body)
        return body


_imports: ContextVar[Imports] = ContextVar("imports")


@contextmanager
def importing() -> Iterator[Imports]:
    """Where expressions are lowered: notes what `call` asks for."""
    imports = Imports()
    token = _imports.set(imports)
    try:
        yield imports
    finally:
        _imports.reset(token)


def call(result: str, name: str, text: str, *args: Any) -> Any:
    """A call, as TIR, of the function that `text` defines as `name`; `result` is TVM's name of its type."""
    _imports.get().texts[name] = text
    return tx.call_pure_extern(result, name, *args)


def vector(element: str, lanes: int) -> str:
    """LLVM's name of a type: `i32`, `<16 x i32>`."""
    return element if lanes == 1 else f"<{lanes} x {element}>"
