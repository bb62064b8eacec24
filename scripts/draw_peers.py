"""Draws docs/peers.svg: python scripts/draw_peers.py

Tuned packages beside ONNX Runtime and OpenVINO: the last table of networks in docs/search.md, whose command stands
there. A bar for each network and peer is the peer's time over the package's, the longest first.
"""

from __future__ import annotations

from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import paths
from svg_figure import line, text

TABLE = paths.ROOT / "docs" / "search.md"
FILE = paths.ROOT / "docs" / "peers.svg"
COLOURS = {"ONNX Runtime": "#1f6fb4", "OpenVINO": "#e08214"}
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 720, 110, 40, 62, 9, 8
TITLE = "The time of ONNX Runtime and of OpenVINO over that of a tuned package"
UNDER = "float32, one thread, a virtual machine of two cores, tuned for five minutes: docs/search.md"


class Row(NamedTuple):
    network: str
    ratios: dict[str, float]  # of each peer: its time over the package's


def rows() -> list[Row]:
    """The last table of docs/search.md that has networks beside both peers."""
    found: list[Row] = []
    columns: list[str] = []
    for written in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in written.strip("|").split("|")]
        if cells[0] == "network":
            columns = cells
            found = [] if set(COLOURS) <= set(cells) else found
        elif written.startswith("| ---") or not set(COLOURS) <= set(columns):
            continue
        elif not written.startswith("|"):
            columns = []
        else:
            found.append(Row(cells[0], {peer: float(cells[columns.index(peer)]) for peer in COLOURS}))
    return sorted(found, key=lambda row: -min(row.ratios.values()))


def drawn(table: list[Row]) -> str:
    most = max(max(row.ratios.values()) for row in table)
    high = TOP + len(table) * (2 * BAR + GAP)
    svg = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {high + 40}")
    svg.attrib |= {"width": str(WIDTH), "height": str(high + 40), "font-family": "sans-serif", "font-size": "12"}
    SubElement(svg, "rect", width="100%", height="100%", fill="white")

    def at(ratio: float) -> float:
        return LEFT + ratio / most * (WIDTH - LEFT - RIGHT)

    text(svg, LEFT, 18, TITLE, "start")
    for k, (peer, colour) in enumerate(COLOURS.items()):
        SubElement(svg, "rect", x=str(LEFT + 110 * k), y="28", width="10", height="10", fill=colour)
        text(svg, LEFT + 110 * k + 15, 37, peer, "start")
    for ratio in range(int(most) + 1):
        line(svg, at(ratio), TOP - 6, at(ratio), high)
        text(svg, at(ratio), high + 14, str(ratio), "middle")
    for k, row in enumerate(table):
        y = TOP + k * (2 * BAR + GAP)
        text(svg, LEFT - 8, y + BAR + 4, row.network, "end")
        for j, (peer, colour) in enumerate(COLOURS.items()):
            ratio, top = row.ratios[peer], y + j * BAR
            size = {"width": f"{at(ratio) - LEFT:.1f}", "height": str(BAR - 1)}
            SubElement(svg, "rect", {"x": str(LEFT), "y": str(top), "fill": colour} | size)
            number = SubElement(svg, "text", {"x": f"{at(ratio) + 4:.1f}", "y": str(top + BAR - 1), "font-size": "9"})
            number.text = f"{ratio:.2f}"
    SubElement(svg, "line", x1=f"{at(1):.1f}", y1=str(TOP - 6), x2=f"{at(1):.1f}", y2=str(high), stroke="black")
    text(svg, LEFT, high + 32, UNDER, "start")
    indent(svg)
    return tostring(svg, "unicode") + "\n"


if __name__ == "__main__":
    FILE.write_text(drawn(rows()))
    print(FILE.relative_to(paths.ROOT))
