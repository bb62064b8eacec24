"""The house keeps its order: a room imports only from rooms above it, some libraries belong to one room, and tests
share what lies in tests/helpers."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from repository import ROOT

HOUSE = ROOT / "modelc"

ROOMS = (  # from the top
    "runtime",
    "errors",
    "scratch",
    "signals",
    "python_worker",
    "forks",
    "verb",
    "policy",
    "ir",
    "target",
    "cache",
    "ops",
    "frontend",
    "passes",
    "partition",
    "layout",
    "space",
    "package",
    "codegen",
    "plan",
    "measure",
    "database",
    "verify",
    "compile",
    "quantize",
    "tune",
    "session",
    "build",
    "report",
    "cli",
    "__main__",
)
MOST_LOOSE = 9  # files in no room
BROUGHT = {"google", "markupsafe"}  # by onnx and by jinja2
PINNED = {"apache-tvm-ffi"}  # what TVM imports, in the version that fits
OWNERS = {"onnx": "frontend", "tvm": "codegen", "onnxruntime": "verify", "openvino": "verify"}


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


@cache
def imports(path: Path, types: bool = True) -> set[str]:
    """The modules that a file imports, wherever in it; `types`: also what it imports for type checkers alone."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    if not types:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and _is_for_types(node))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


FILES = sorted(p for p in HOUSE.rglob("*.py") if p != HOUSE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(HOUSE)))
def test_imports_come_from_above(path: Path) -> None:
    room = room_of(path)
    assert room in ROOMS, f"{room} has no place in the house"
    for module in imports(path):
        parts = module.split(".")
        if parts[0] == "modelc" and len(parts) > 1 and parts[1] in ROOMS:
            assert ROOMS.index(parts[1]) <= ROOMS.index(room), f"{path.name} of {room} imports {module}"
        assert OWNERS.get(parts[0], room) == room, f"{path.name} of {room} imports {parts[0]}"


def test_every_dependency_is_used_and_every_use_is_a_dependency() -> None:
    """What the house imports from others is what pyproject.toml has it installed with, or is in an extra."""
    project = (ROOT / "pyproject.toml").read_text()
    needed, extras = (
        {name.lower() for name in re.findall(r'"([\w-]+)[^"]*"', part.partition("\n[project.scripts]")[0])}
        for part in project.partition("\ndependencies = [")[2].split("[project.optional-dependencies]")
    )
    sources = packages_distributions()
    modules = {m.split(".")[0] for path in FILES for m in imports(path)} - {*sys.stdlib_module_names, "modelc"}
    used = {module: {name.lower().replace("_", "-") for name in sources.get(module, ())} for module in modules}
    assert needed - PINNED <= set().union(*used.values())
    assert [m for m, names in used.items() if names and m not in BROUGHT and names.isdisjoint(needed | extras)] == []


def test_few_files_lie_loose() -> None:
    assert len(list(HOUSE.glob("*.py"))) <= MOST_LOOSE


def folders_of(path: Path) -> tuple[str, ...]:
    """The folders around a file of the house, from the outermost."""
    return path.relative_to(HOUSE).parts[:-1]


def module_path(module: str) -> Path:
    """The file, or the folder, that a module of the house is."""
    inside = HOUSE.joinpath(*module.split(".")[1:])
    while not inside.is_dir() and not inside.with_suffix(".py").exists():
        inside = inside.parent  # a name in a module
    return inside if inside.is_dir() else inside.with_suffix(".py")


def folder_imports() -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """For each folder, at any depth, the sibling folders that something in it imports from, by common parent."""
    edges: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for path in FILES:
        mine = folders_of(path)
        for module in imports(path):
            if not module.startswith("modelc."):
                continue
            target = module_path(module)
            theirs = target.relative_to(HOUSE).parts if target.is_dir() else folders_of(target)
            shared = 0
            while shared < min(len(mine), len(theirs)) and mine[shared] == theirs[shared]:
                shared += 1
            if shared < min(len(mine), len(theirs)):
                edges.setdefault(mine[: shared + 1], set()).add(theirs[: shared + 1])
    return edges


def file_imports() -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """For each file the files that it imports from when it runs, wherever in it; of a folder that is its
    `__init__.py`."""
    edges: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for path in FILES:
        for module in imports(path, types=False):
            if module.split(".")[0] != "modelc":
                continue
            target = module_path(module)
            target = target / "__init__.py" if target.is_dir() else target
            if target != path:
                edges.setdefault(path.relative_to(HOUSE).parts, set()).add(target.relative_to(HOUSE).parts)
    return edges


@pytest.mark.parametrize("listed", [folder_imports, file_imports], ids=["folders", "files"])
def test_nothing_imports_itself_in_a_circle(listed: Callable[[], dict[tuple[str, ...], set[tuple[str, ...]]]]) -> None:
    edges = listed()
    assert len(edges) > 10
    above: dict[tuple[str, ...], set[tuple[str, ...]]] = {}

    def reached(place: tuple[str, ...], way: tuple[tuple[str, ...], ...]) -> None:
        assert place not in way, " -> ".join("/".join(step) for step in (*way, place))
        if place not in above:
            above[place] = edges.get(place, set())
            for other in above[place]:
                reached(other, (*way, place))

    for place in edges:
        reached(place, ())


@pytest.mark.parametrize("path", sorted((HOUSE / "runtime").glob("*.py")), ids=lambda p: p.name)
def test_the_runtime_imports_the_standard_library_and_numpy_alone(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "numpy"}
    assert all(m.split(".")[0] in allowed or m.startswith("modelc.runtime") for m in imports(path))


def test_the_architecture_lists_the_rooms_in_their_order() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().partition("| room |")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)(?:/|\.py)`", row.split("|")[1])]
    assert named == list(ROOMS)


TESTS = ROOT / "tests"
OF_TESTS = sorted(TESTS.rglob("*.py"))
OF_SCRIPTS = TESTS / "end_to_end/scripts"  # the tests whose subject is a script


def stems(files: Iterable[Path]) -> set[str]:
    return {path.stem for path in files}


def wrong_imports(files: Iterable[Path], modules: set[str]) -> dict[str, list[str]]:
    """By file, those of `modules` that it imports, in a program that it has as text too."""
    line = re.compile(rf"^\s*(?:from|import) ({'|'.join(sorted(modules))})\b", re.MULTILINE)
    found = {str(path.relative_to(TESTS)): line.findall(path.read_text()) for path in files}
    return {name: wrong for name, wrong in found.items() if wrong}


def test_no_file_imports_a_file_of_tests() -> None:
    tests = stems(TESTS.rglob("test_*.py"))
    assert len(tests) > 150
    assert wrong_imports(OF_TESTS, tests | {"conftest"}) == {}


def test_scripts_are_imported_by_their_own_tests_alone() -> None:
    scripts = stems((ROOT / "scripts").glob("*.py"))
    assert len(scripts) > 20
    assert wrong_imports((path for path in OF_TESTS if OF_SCRIPTS not in path.parents), scripts) == {}


def test_helpers_import_no_fuzzer() -> None:
    fuzzers = stems((TESTS / "fuzz").glob("*.py"))
    assert len(fuzzers) > 10
    assert wrong_imports((TESTS / "helpers").glob("*.py"), fuzzers) == {}


def test_every_file_of_tests_has_a_name_of_its_own() -> None:
    """As each is imported by its name alone."""
    names = [path.stem for path in (*OF_TESTS, *(ROOT / "scripts").glob("*.py")) if path.stem != "__main__"]
    assert [name for name, count in Counter(names).items() if count > 1] == []
