"""The answers of programs that both engines run are the same up to roundings, and where they are not it is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import ort_programs
import pytest


@pytest.mark.parametrize(
    ("ours", "theirs", "place"),
    [
        ([["text", 0.99], 3], [["text", 0.991], 3], ""),
        ({"score": 1.0}, {"score": 1.1}, ".score: 1.0 and 1.1"),
        ([["text", 1]], [["test", 1]], "[0][0]: text and test"),
        ([1, 2], [1], ": [1, 2] and [1]"),
        ({"a": float("nan")}, {"a": float("nan")}, ""),
    ],
)
def test_answers_are_compared(ours: object, theirs: object, place: str) -> None:
    assert ort_programs.difference(ours, theirs) == place


def test_inputs_are_the_same_in_both_processes() -> None:
    assert np.array_equal(ort_programs.sound(0.5), ort_programs.sound(0.5))
    assert ort_programs.png(ort_programs.picture(64, 64, ["a"])) == ort_programs.png(
        ort_programs.picture(64, 64, ["a"])
    )


def test_a_program_does_its_example_once_for_every_line(tmp_path: Path) -> None:
    """In a process, by a stand-in for its Python that says what it was asked."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nwhile read line; do echo \'{"seconds": 1, "answer": "\'$3 $4\'"}\'; done\n')
    python.chmod(0o755)
    with (tmp_path / "log").open("w") as log:
        served = ort_programs.Served(python, "magika", "modelc", log, {"PATH": "/usr/bin:/bin"})
        assert [served.once(), served.once()] == [(1, "magika modelc")] * 2
        served.end()


def test_a_program_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["ort_programs.py", "nothing"])
    with pytest.raises(
        SystemExit, match="there is no program nothing; expected some of rapidocr_onnxruntime, silero-vad"
    ):
        ort_programs.main()
