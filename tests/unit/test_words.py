"""Names say what they hold: words without meaning are rare among the names that the code binds."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from repository import ROOT

VAGUE = frozenset({"found", "one", "ones", "known", "some", "rest", "thing", "things", "stuff", "tmp", "foo"})
SHARE = 0.01  # of the bound names, at most


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a file binds, with its line: variables, arguments, functions, classes, attributes of self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def test_few_names_are_words_without_meaning() -> None:
    vague: Counter[str] = Counter()
    files: Counter[str] = Counter()
    count = 0
    for path in sorted((ROOT / "modelc").rglob("*.py")):
        for name, _ in bound_names(ast.parse(path.read_text())):
            count += 1
            if name.strip("_") in VAGUE:
                vague[name] += 1
                files[str(path.relative_to(ROOT))] += 1
    assert count > 10_000
    total = sum(vague.values())
    print(f"{total} of {count} names: {vague.most_common()}")
    assert total <= SHARE * count, f"{total} of {count} names: {vague.most_common(10)}; most in {files.most_common(10)}"
