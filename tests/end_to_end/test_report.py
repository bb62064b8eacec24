"""modelc report: one file that needs nothing beside it, and in a browser draws what it is to draw."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from io import BytesIO
from pathlib import Path

import browser
import database_files
import numpy as np
import onnx
import pytest
from small_model import conv_net
from three_ways import host_target

import modelc
from modelc.cli import main
from modelc.errors import TargetError
from modelc.package import PackageTarget, read_package
from modelc.report.drawing import HEIGHT, WIDTH, Drawing
from modelc.report.facts import cpu_name, package_facts
from modelc.report.page import Column, Section, html

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install pillow")
pytest.importorskip("vl_convert", reason="what draws is not installed: pip install 'modelc-compiler[report]'")
needs_browser = pytest.mark.skipif(browser.CHROMIUM is None, reason=browser.LACKING)
HOSTILE = "</script><script>alert(1)</script><b>"
MOST_BYTES = 3 << 20


def ended(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some kernels, one of which covers a node with a hostile name; and how its tuning went."""
    folder = tmp_path_factory.mktemp("report")
    model = onnx.load(conv_net(folder / "m.onnx"))
    model.graph.node[0].name = HOSTILE
    onnx.save(model, folder / "m.onnx")
    given = {"target": host_target(), "database": False, "shapes": [{"x": (1, 3, 20, 20)}]}
    modelc.compile(folder / "m.onnx", output=folder / "m.modelc", **given)
    log = [{"seconds": k, "trials": 16 * k, "predicted_seconds": 1e-5 / k} for k in (1, 2, 3)]
    tree = {
        "schema": "tuning",
        "version": 1,
        "model": "m",
        "untuned_ms": 0.02,
        "tuned_ms": 0.01,
        "ort_ms": 0.03,
        "log": log,
    }
    (folder / "m.tuning.json").write_text(json.dumps(tree))
    return folder / "m.modelc"


@pytest.fixture(scope="module")
def page(package: Path) -> Path:
    """Of the package beside itself: every section."""
    place = package.with_name("page.html")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modelc.verify.diff.ROUNDS", 2)
        assert ended("report", package, "--against", package, "--model", package.with_name("m.onnx"), "-o", place) == 0
    return place


SECTIONS = (
    "Summary",
    "Side by side",
    "Kernels by time",
    "Roofline",
    "The graph",
    "The arena over the steps",
    "Verification by kernel",
    "Tuning",
)


def test_the_page_has_every_section_and_asks_for_nothing(page: Path) -> None:
    text = page.read_text()
    assert tuple(re.findall(r"^<h2>(.*?)</h2>$", text, re.MULTILINE)) == SECTIONS
    assert len(text.encode()) <= MOST_BYTES
    assert HOSTILE not in text and "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    before_library = text[: text.index('<script type="application/json"')]
    assert not re.search(r"(?:src|href)\s*=|@import|url\((?!#)", before_library)


def test_the_page_says_where_when_and_how_it_was_timed(page: Path) -> None:
    text = page.read_text()
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert re.match(r"\d{4}-\d\d-\d\d", facts["date"]) and cpu_name() in unescape(facts["machine"])
    assert "times as fast" in facts["ONNX Runtime"] and "a fixed loop beside" in facts["spread"]
    assert facts["command"].startswith("modelc report ") and "modelc" in facts["made by"]
    assert {"p10", "p90"} <= set(re.findall(r"<th[^>]*>(.*?)</th>", text))


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_draws_every_plot_and_its_console_is_empty(page: Path, tmp_path: Path, dark: bool) -> None:
    seen = browser.opened(page, tmp_path / "profile", dark)
    assert seen.console == () and 'data-plots="drawn"' in seen.document
    plots = browser.plots_of(seen.document)
    plotted = [section for section in SECTIONS if section not in ("Summary", "The graph")]
    for section, plot in zip(plotted, plots, strict=True):
        assert re.search(r'aria-roledescription="(bar|point|rect|rect mark|line mark|rule)"', plot), section
        assert "NaN" not in plot and "undefined" not in plot, section


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
@pytest.mark.sweep(1)
def test_it_is_not_blank(page: Path, tmp_path: Path, width: int, dark: bool) -> None:
    rows = pixels(browser.picture(page, tmp_path / "profile", tmp_path / "a.png", width, 2400, dark))
    assert len({*rows}) > 400  # many rows of pixels differ
    background = rows[0][:3]
    assert (max(background) < 64) == dark


def pixels(png: bytes) -> list[bytes]:
    """The rows of a picture, RGB."""
    picture = np.asarray(Image.open(BytesIO(png)).convert("RGB"))
    return [row.tobytes() for row in picture]


def test_a_package_of_another_machine_is_shown_without_times(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_package(package).manifest
    elsewhere = replace(manifest, target=PackageTarget("far", "riscv64-linux-gnu", ()))
    moved = replace(read_package(package), manifest=elsewhere)
    monkeypatch.setattr("modelc.report.facts.read_package", lambda *_, **__: moved)
    monkeypatch.setattr("modelc.report.facts.profile", refused)
    facts = package_facts(package)
    assert facts["total_us"] is None and "riscv64" in facts["untimed_because"]
    assert [k["kernel"] for k in facts["kernels"]] and facts["arena"]


def refused(*_: object) -> None:
    raise TargetError("it was built for riscv64-linux-gnu")


def test_the_arena_has_each_value_over_its_steps(package: Path) -> None:
    lives = package_facts(package)["arena"]
    plan = read_package(package).manifest.variants[0]
    assert [life["tensor"] for life in lives] == [tensor.name for tensor in plan.memory]
    assert all(0 <= life["start"] < life["end"] <= len(plan.steps) for life in lives)
    assert all(life["top"] <= plan.arena_bytes for life in lives)


def test_the_graph_has_a_box_for_each_kernel_and_edges_from_who_writes_to_who_reads(package: Path) -> None:
    facts = package_facts(package)
    plan, drawing = read_package(package).manifest.variants[0], facts["drawing"]
    boundary = [*plan.inputs, *plan.outputs]
    assert len(drawing.boxes) == len(plan.steps) + len(boundary)
    heats = [box.heat for box in drawing.boxes[: len(plan.steps)]]
    assert max(heats) == 1 and heats.index(1) == max(range(len(heats)), key=lambda k: facts["kernels"][k]["us"])
    for life in facts["arena"]:
        assert life["writers"][0] == life["start"] and life["readers"], life["tensor"]
    below = [(drawing.boxes[b].y - drawing.boxes[a].y) for a, b in ends(drawing)]
    assert len(below) == len(drawing.edges) >= len(plan.steps) and min(below) > 0


def ends(drawing: Drawing) -> list[tuple[int, int]]:
    """The boxes at the ends of each edge."""
    below = {(box.x + WIDTH // 2, box.y + HEIGHT): k for k, box in enumerate(drawing.boxes)}
    above = {(box.x + WIDTH // 2, box.y): k for k, box in enumerate(drawing.boxes)}
    points = [[tuple(map(int, p.split(","))) for p in re.findall(r"\d+,\d+", e.path)] for e in drawing.edges]
    return [(below[first], above[last]) for first, *_, last in points]


def test_the_graph_is_text_that_can_be_searched(page: Path) -> None:
    text = page.read_text()
    svg = text[text.index('<figure class="graph">') : text.index("</figure>", text.index('<figure class="graph">'))]
    for step in read_package(page.with_name("m.modelc")).manifest.variants[0].steps:
        assert f">{step.name[:20]}" in svg


def test_of_a_build_and_what_is_none(tmp_path: Path, capsys) -> None:
    gate = {"gate": "max-params", "outcome": "failed", "said": "3 of 2", "limit": 2, "value": 3}
    cell = {
        "cell": "a:b:f32",
        "model": "a",
        "target": "b",
        "precision": "f32",
        "key": "0",
        "outcome": "built",
        "said": "",
    }
    cell |= {"package": "", "sizes": {"params": 1, "library": 2, "arena": 3}, "seconds": 1.0, "gates": [gate]}
    build = {
        "schema": "build",
        "version": 1,
        "modelc": "0",
        "source": "m",
        "only": [],
        "shard": "",
        "passed": False,
        "seconds": 1.0,
    }
    (tmp_path / "build.json").write_text(json.dumps({**build, "cells": [cell]}))
    assert ended("report", tmp_path / "build.json", "-o", tmp_path / "b.html") == 0
    assert "a:b:f32: max-params: 3 of 2" in (tmp_path / "b.html").read_text()
    for subject, words in (("gone", "expected a package, a build.json or a database"), ("other.json", "is not JSON")):
        (tmp_path / "other.json").write_text("{")
        assert ended("report", tmp_path / subject, "-o", tmp_path / "c.html") == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "c.html").exists()


def test_of_a_database(tmp_path: Path) -> None:
    database = database_files.filled(tmp_path / "records.sqlite")
    assert ended("report", database, "-o", tmp_path / "d.html") == 0
    text = (tmp_path / "d.html").read_text()
    assert f"{len(database_files.made())} records of 1 Tasks" in text and database_files.TASK.hash in text
    assert '"what":"fastest so far"' in text


def test_what_is_named_is_text() -> None:
    section = Section(HOSTILE, HOSTILE, ((HOSTILE, HOSTILE),), {"data": HOSTILE}, (Column(HOSTILE),), ((HOSTILE,),))
    text = html(HOSTILE, HOSTILE, [section])
    assert HOSTILE not in text and "</script><b>" not in text
