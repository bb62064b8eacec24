"""Draws docs/peers.svg: python scripts/draw_peers.py

Tuned packages beside ONNX Runtime and OpenVINO: the last table of networks in docs/search.md, whose command stands
there. A bar for each network and peer is the peer's time over the package's, the longest first.
"""

from __future__ import annotations

from typing import NamedTuple

import paths
from vl_convert import vegalite_to_svg

TABLE = paths.ROOT / "docs" / "search.md"
FILE = paths.ROOT / "docs" / "peers.svg"
COLOURS = {"ONNX Runtime": "#1f6fb4", "OpenVINO": "#e08214"}
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
    bars = [{"network": row.network, "peer": peer, "ratio": row.ratios[peer]} for row in table for peer in COLOURS]
    networks = [row.network for row in table]
    y = {"field": "network", "type": "nominal", "sort": networks, "title": None}
    places = {"y": y, "yOffset": {"field": "peer", "sort": list(COLOURS)}}
    x = {"field": "ratio", "type": "quantitative", "title": None, "axis": {"tickCount": 5}}
    colours = {"domain": list(COLOURS), "range": list(COLOURS.values())}
    legend = {"orient": "top", "title": None}
    spec = {
        "title": {"text": TITLE, "subtitle": UNDER, "anchor": "start"},
        "width": 520,
        "height": {"step": 11},
        "background": "white",
        "data": {"values": bars},
        "encoding": {"x": x},
        "layer": [
            {
                "mark": {"type": "bar", "cornerRadiusEnd": 1},
                "encoding": {
                    **places,
                    "color": {"field": "peer", "type": "nominal", "scale": colours, "legend": legend},
                },
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 3, "fontSize": 9},
                "encoding": {**places, "text": {"field": "ratio", "format": ".2f"}},
            },
            {"mark": {"type": "rule"}, "encoding": {"x": {"datum": 1}}},
        ],
    }
    return str(vegalite_to_svg(spec)) + "\n"


if __name__ == "__main__":
    FILE.write_text(drawn(rows()))
    print(FILE.relative_to(paths.ROOT))
