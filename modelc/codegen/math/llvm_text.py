"""Functions of LLVM's own text, for what TIR cannot say; LLVM inlines them.

TVM declares that sums of integers do not overflow, which LLVM may rely on, has no types for bfloat16, and has no branch
inside an expression. What an expression calls is noted while it is lowered and imported with the function around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from modelc.codegen.lean_tvm import tvm, tx

Texts = dict[str, str]  # what is called, by function name: each a module of its own


def with_texts(texts: Texts, body: Any) -> Any:
    """`body` with these functions."""
    for name in sorted(texts):
        body = tx.AttrStmt(tx.IntImm("int32", 0), "pragma_import_llvm", tvm.ir.StringImm(texts[name]), body)
    return body


_texts: ContextVar[Texts] = ContextVar("texts")


@contextmanager
def importing() -> Iterator[Texts]:
    """Where expressions are lowered: notes what `call` asks for."""
    token = _texts.set({})
    try:
        yield _texts.get()
    finally:
        _texts.reset(token)


def call(result: str, name: str, text: str, *args: Any) -> Any:
    """A call, as TIR, of the function that `text` defines as `name`; `result` is TVM's name of its type."""
    _texts.get()[name] = text
    return tx.call_pure_extern(result, name, *args)


def vector(element: str, lanes: int) -> str:
    """LLVM's name of a type: `i32`, `<16 x i32>`."""
    return element if lanes == 1 else f"<{lanes} x {element}>"
