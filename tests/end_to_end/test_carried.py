"""What compile takes of the records of a target's family, and that it computes the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import small_model as small
import yaml
from onnx import helper
from records_of_families import family, others_of, record_of, written
from three_ways import check, host_target, task_of

from modelc.cli import main
from modelc.compile.command import compile_request
from modelc.compile.config import load_config
from modelc.compile.pipeline import Run
from modelc.compile.programs import parameter_bytes
from modelc.compile.request import CompileRequest
from modelc.compile.result import CompileResult
from modelc.database.record import place_of
from modelc.ir.block import Task
from modelc.space.carry import nearest
from modelc.space.choose import Schedules

CONV = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
RELATIVE = 0.02  # so little that the price forbids nothing


def product(m: int, k: int, n: int) -> Task:
    return task_of("MatMul", {}, [(m, k), (k, n)]).canonical()


def convolution(c: int, h: int, o: int) -> Task:
    return task_of("Conv", CONV, [(1, c, h, h), (o, c, 3, 3)], (1,), channels_last=True).canonical()


NEAR = {
    "products": (product(24, 32, 48), [product(m, k, n) for m, k, n in ((24, 32, 48), (23, 31, 47), (41, 20, 80))]),
    "convolutions": (
        convolution(16, 12, 32),
        [convolution(c, h, o) for c, h, o in ((16, 12, 32), (15, 13, 33), (24, 20, 17))],
    ),
    "sums of rows": (
        task_of("Softmax", {"axis": -1}, [(16, 100)]).canonical(),
        [task_of("Softmax", {"axis": -1}, [shape]).canonical() for shape in ((16, 100), (9, 131), (31, 64))],
    ),
}


@pytest.mark.parametrize("what", NEAR)
def test_a_carried_schedule_computes_the_same(what: str) -> None:
    """Whatever the price says of it: ragged sizes too."""
    task, near = NEAR[what]
    own, checked = Schedules(host_target()), set[tuple[str, str]]()
    for point, _ in islice(others_of(task, own, most=3.0), 0, 40, 13):
        for other in near:
            placed = nearest(own.families(other)[0], point)
            if placed is not None:
                candidate = placed.sketch.candidate(placed.point)
                check(other, candidate, host_target())
                checked.add((other.hash, candidate.key))
    assert len(checked) >= 3


def model(path: Path, rows: int, columns: int = 96) -> Path:
    """One product by a constant."""
    weights = np.random.default_rng(0).standard_normal((64, columns)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return small.save(path, [node], {"x": [rows, 64]}, {"y": [rows, columns]}, {"w": weights})


def with_records(folder: Path, path: Path, relative: float = RELATIVE, threads: int = 1) -> Path:
    """A target beside the records of the one Task of a model."""
    run = Run(path, "", host_target(), load_config(), ({},))
    programs = run.programs()
    (task,) = {bound.task.canonical() for program in programs.rounded for bound in program.kernels}
    place = place_of(task, host_target(), parameter_bytes(programs.rounded))
    record = record_of(task, relative, run.schedules, place)
    written(folder / "mine.jsonl", family(record, target=host_target(), threads=threads))
    tree = {**yaml.safe_load(host_target().to_yaml()), "records": "mine.jsonl"}
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
    return folder / "mine.yaml"


def compiled(path: Path, target: Path, output: Path, **options: object) -> CompileResult:
    request = CompileRequest(path, output=output, target=target, database=False, **options)  # type: ignore[arg-type]
    return compile_request(request)


def schedules_in(package: Path) -> Sequence[object]:
    return list(json.loads((package / "choices.json").read_text())["tasks"].values())


def test_compile_takes_records_for_equal_and_near_tasks_and_says_so(tmp_path: Path, capsys) -> None:
    same, near, far = model(tmp_path / "a.onnx", 32), model(tmp_path / "b.onnx", 40), model(tmp_path / "c.onnx", 512)
    target = with_records(tmp_path, same)
    first = compiled(same, target, tmp_path / "a.modelc")
    assert (first.carried, first.constructed, first.report is not None and first.report.passed) == (1, 0, True)
    assert (
        compiled(near, target, tmp_path / "b.modelc").carried,
        compiled(far, target, tmp_path / "c.modelc").carried,
    ) == (
        1,
        0,
    )
    plain = tmp_path / "plain.yaml"
    tree = load_config().to_json()
    plain.write_text(yaml.safe_dump({**tree, "schedule": {**tree["schedule"], "records": False}}))
    without = compiled(same, target, tmp_path / "d.modelc", config=plain)
    assert (without.carried, without.constructed) == (0, 1)
    assert schedules_in(tmp_path / "a.modelc") != schedules_in(tmp_path / "d.modelc")
    assert compiled(same, target, tmp_path / "e.modelc", run_threads=2).carried == 0, "measured on one thread"
    again = compiled(same, target, tmp_path / "f.modelc", choices=tmp_path / "a.modelc")
    assert (again.carried, again.chosen) == (0, 1)
    for name in ("choices.json", "params.bin", "manifest.json"):
        assert (tmp_path / "a.modelc" / name).read_bytes() == (tmp_path / "f.modelc" / name).read_bytes(), name
    with pytest.raises(SystemExit):
        main(["compile", str(same), "-o", str(tmp_path / "g.modelc"), "--target", str(target), "--no-bench"])
    assert "records       1 tasks as measured on a machine of the target's family" in capsys.readouterr().out


def test_a_gain_that_the_price_outweighs_is_left(tmp_path: Path) -> None:
    path = model(tmp_path / "a.onnx", 32)
    target = with_records(tmp_path, path, relative=0.99)
    assert compiled(path, target, tmp_path / "a.modelc").carried == 0


def test_what_is_stale_is_said(tmp_path: Path) -> None:
    path = model(tmp_path / "a.onnx", 32)
    target = with_records(tmp_path, path)
    file = tmp_path / "mine.jsonl"
    file.write_text(file.read_text().replace('"faster":{"sketch":"', '"faster":{"sketch":"older '))
    result = compiled(path, target, tmp_path / "a.modelc")
    assert result.carried == 0
    assert any("records of the target's family are left alone" in note for note in result.notes)
