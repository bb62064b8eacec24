"""Every function of the C interface is in every language, or its absence has a reason; declarations agree with C's."""

from __future__ import annotations

import re

import pytest

from modelc.package.header import BARE_ALONE, HOSTED_ALONE, every_function
from modelc.package.sources import RUNTIME
from modelc.runtime import library

FUNCTIONS = {function.name: function for function in every_function()}
TOOLS = {"watch"}  # for programs that check a package
ABSENT = {
    "model.hpp": TOOLS | {"run"},  # run_shaped without shapes
    "model.rs": TOOLS | {"input_count", "output_count", "poll", "run"},  # constants; Stopper
    "model.mjs": (set(HOSTED_ALONE) - {"profile_start", "profile_stop", "time_limit"})
    | {"stop", "run", "thread_count"},
}
BY_CALLBACKS = {"time_limit": "poll", "profile_start": "watch", "profile_stop": "watch"}  # in JavaScript


def text_of(file: str) -> str:
    names = ("model.rs", "model_hosted.rs", "model_bare.rs") if file == "model.rs" else (file,)
    return "\n".join((RUNTIME / name).read_text() for name in names)


@pytest.mark.parametrize(
    ("file", "called"), [("model.hpp", r"api_?->NAME\b"), ("model.rs", r"PREFIX_NAME\("), ("model.mjs", r"\"NAME\"")]
)
def test_a_language_calls_every_function(file: str, called: str) -> None:
    text = text_of(file)
    for name in FUNCTIONS:
        by = name
        if file == "model.mjs":  # where tensors are asked for by their kind
            by = BY_CALLBACKS.get(name, re.sub(r"^(input|output)(_count)?$", r"\1", name))
        is_called = re.search(called.replace("NAME", by), text) is not None
        assert is_called == (name not in ABSENT[file]), f"{name} in {file}"


def test_declarations_in_rust_and_python_have_as_many_parameters() -> None:
    declared = re.findall(r"fn PREFIX_(\w+)\(([^)]*)\)", text_of("model.rs"))
    assert {name for name, _ in declared} == set(FUNCTIONS) - ABSENT["model.rs"]
    for name, parameters in declared:
        assert len(re.findall(r"\w+: ", parameters)) == len(FUNCTIONS[name].arguments), name
    assert list(library.FUNCTIONS) == list(FUNCTIONS)
    for name, (_, arguments) in library.FUNCTIONS.items():
        assert len(arguments) == len(FUNCTIONS[name].arguments), name


def test_statuses_are_those_of_the_header() -> None:
    header = (RUNTIME / "model.h").read_text()
    statuses = {name: int(number) for name, number in re.findall(r"MODELC_(\w+) = (\d+),? +/\*", header)}
    declared = {name: getattr(library, name) for name in ("STOPPED", "INTERRUPTED", "LATE")}
    pairs = re.findall(r"\b([A-Z_]+)(?:: i32)? = (\d+)", text_of("model.rs") + text_of("model.mjs"))
    declared |= {name: int(number) for name, number in pairs if name in statuses}
    assert set(declared) == {"BAD_ARGUMENT", "STOPPED", "INTERRUPTED", "LATE"}
    assert all(statuses[name] == number for name, number in declared.items())
    assert set(BARE_ALONE) <= set(FUNCTIONS) and set(HOSTED_ALONE) <= set(FUNCTIONS)
