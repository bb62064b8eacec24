"""The curve of a tuning run: an SVG that says what each round was predicted to gain."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from modelc.cli.tuning_curve import curve, write_curve
from modelc.errors import OutputError
from modelc.tune.search.tune import Moment

LOG = (Moment(1.5, 16, 6.6e-3), Moment(3.0, 32, 6.5e-3), Moment(100.0, 900, 6.1e-3))
SVG = "{http://www.w3.org/2000/svg}"


def test_a_step_for_each_round() -> None:
    drawn = fromstring(curve(LOG, "<a>"))
    line = drawn.find(f"{SVG}polyline")
    assert line is not None
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == 2 * len(LOG) - 1
    across, down = zip(*points, strict=True)
    assert list(across) == sorted(across) and list(down) == sorted(down)  # it falls: y grows downwards
    words = [text.text or "" for text in drawn.iter(f"{SVG}text")]
    assert words[0] == "<a>: predicted time, 900 measurements"
    assert {"0", "20", "100", "6.2", "6.6", "seconds of measuring"} <= {*words}


@pytest.mark.parametrize("log", [(Moment(0.0, 1, 0.0),) * 2, (Moment(1.0, 1, 5e-3), Moment(2.0, 2, 5e-3))])
def test_nothing_gained_is_a_level_line(log: tuple[Moment, ...]) -> None:
    line = fromstring(curve(log, "flat")).find(f"{SVG}polyline")
    assert line is not None
    assert len({point.split(",")[1] for point in line.attrib["points"].split()}) == 1


def test_it_lies_beside_the_package(tmp_path: Path) -> None:
    assert write_curve(LOG[:1], tmp_path / "m.modelc") is None
    assert write_curve(LOG, tmp_path / "m.modelc") == tmp_path / "m.tuning.svg"
    assert [path.name for path in tmp_path.iterdir()] == ["m.tuning.svg"]
    with pytest.raises(OutputError, match=r"the package is written, but the curve .* cannot be"):
        write_curve(LOG, Path("/proc/none/m.modelc"))
