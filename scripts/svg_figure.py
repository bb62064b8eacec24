"""Axes and lines of the figures that scripts draw for the docs, as SVG."""

from __future__ import annotations

from math import ceil, floor, log10
from xml.etree.ElementTree import Element, SubElement

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 32, 44  # around the plot
TICKS = 5  # of an axis, or a few more


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
