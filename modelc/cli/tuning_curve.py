"""The curve of a tuning run as an SVG file: the predicted time of the whole model after each round."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from modelc.errors import OutputError
from modelc.scratch import beside

if TYPE_CHECKING:
    from modelc.tune.search.tune import Moment

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 32, 44  # around the plot
TICKS = 5  # of an axis, or a few more
ROOM = 0.05  # of the values' span, above and below


def write_curve(log: Sequence[Moment], package: Path) -> Path | None:
    """Writes NAME.tuning.svg beside the package NAME.modelc; None, and nothing, for fewer than two rounds. Raises
    OutputError where it cannot be written."""
    if len(log) < 2:
        return None
    path = package.with_name(f"{package.stem}.tuning.svg")
    try:
        with beside(path, folder=False) as made:
            made.write_text(curve(log, package.stem), encoding="utf-8")
            made.replace(path)
    except OSError as error:
        raise OutputError(f"the package is written, but the curve {path} cannot be: {error.strerror}") from None
    return path


def curve(log: Sequence[Moment], title: str) -> str:
    """SVG: milliseconds that the rounds' best schedules are predicted to take together, over seconds of measuring."""
    milliseconds = [1e3 * moment.predicted for moment in log]
    low, high = min(milliseconds), max(milliseconds)
    margin = ROOM * (high - low) or ROOM * high
    across = Axis(0.0, log[-1].seconds, LEFT, WIDTH - RIGHT)
    up = Axis(low - margin, high + margin, HEIGHT - BOTTOM, TOP)
    svg = framed(f"{title}: predicted time, {log[-1].trials} measurements", across, up)
    text(svg, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "seconds of measuring", "middle")
    text(svg, 6, TOP - 12, "ms", "start")
    points = [(across.at(log[0].seconds), up.at(milliseconds[0]))]
    for moment, value in zip(log[1:], milliseconds[1:], strict=True):  # a step: it is known when the round is over
        points += [(across.at(moment.seconds), points[-1][1]), (across.at(moment.seconds), up.at(value))]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    SubElement(svg, "polyline", {"points": path, "fill": "none", "stroke": "#1f6fb4", "stroke-width": "2"})
    indent(svg)
    return tostring(svg, "unicode") + "\n"


def framed(title: str, across: Axis, up: Axis) -> Element:
    """An SVG with a title and both axes, for curves to be drawn in."""
    svg = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}")
    svg.attrib |= {"width": str(WIDTH), "height": str(HEIGHT), "font-family": "sans-serif", "font-size": "12"}
    SubElement(svg, "rect", width="100%", height="100%", fill="white")
    text(svg, LEFT, TOP - 12, title, "start")
    for value in across.ticks():
        line(svg, across.at(value), TOP, across.at(value), HEIGHT - BOTTOM)
        text(svg, across.at(value), HEIGHT - BOTTOM + 16, f"{value:g}", "middle")
    for value in up.ticks():
        line(svg, LEFT, up.at(value), WIDTH - RIGHT, up.at(value))
        text(svg, LEFT - 6, up.at(value) + 4, f"{value:g}", "end")
    return svg


class Axis:
    """Where the values from `low` to `high` are drawn, between two coordinates."""

    def __init__(self, low: float, high: float, start: float, end: float):
        self.low, self.high, self.start, self.end = low, max(high, low + 1e-12), start, end

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values, at equal distances of 1, 2 or 5 times a power of ten."""
        least = (self.high - self.low) / TICKS
        power = 10.0 ** floor(log10(least))
        step = next(k * power for k in (1, 2, 5, 10) if k * power >= least * (1 - 1e-9))
        return [round(k * step, 12) for k in range(ceil(self.low / step), floor(self.high / step) + 1)]


def line(svg: Element, *ends: float) -> None:
    SubElement(
        svg, "line", dict(zip(("x1", "y1", "x2", "y2"), map("{:.1f}".format, ends), strict=True), stroke="#dddddd")
    )


def text(svg: Element, x: float, y: float, words: str, anchor: str) -> None:
    SubElement(svg, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}).text = words
