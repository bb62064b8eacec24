"""Plots as Vega-Lite specifications: data and encodings, nothing drawn by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modelc.runtime.shown import size

MOST_BARS, MOST_PAIRS = 30, 16
BAR = 18  # pixels of height
VERDICTS = ["right", "WRONG"]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]


def _chart(height: int, **fields: Any) -> Spec:
    sized = {"width": "container", "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {"$schema": SCHEMA, **sized, **fields}


def _axis(field: str, kind: str, title: str, **more: Any) -> Spec:
    return {"field": field, "type": kind, "title": title, **more}


def kernel_times(kernels: Rows) -> Spec:
    """The kernels that take most, longest first."""
    rows = [
        {"kernel": k["kernel"], "us": k["us"], "nodes": ", ".join(k["nodes"]), "dtype": k["dtype"]}
        | {"peak": k["peak_share"], "share": k["share"], "instruction": k["instruction"]}
        for k in sorted(kernels, key=lambda k: -k["us"])[:MOST_BARS]
    ]
    tooltip = [
        _axis("kernel", "nominal", "kernel"),
        _axis("nodes", "nominal", "ONNX nodes"),
        _axis("us", "quantitative", "us", format=".1f"),
        _axis("share", "quantitative", "of the whole", format=".1%"),
        _axis("peak", "quantitative", "of the peak", format=".0%"),
        _axis("instruction", "nominal", "instruction"),
    ]
    return _chart(
        BAR * len(rows) + BAR,
        data={"values": rows},
        mark={"type": "bar", "cornerRadiusEnd": 2},
        encoding={
            "y": _axis("kernel", "nominal", "", sort="-x"),
            "x": _axis("us", "quantitative", "microseconds"),
            "color": _axis("dtype", "nominal", "computes in"),
            "tooltip": tooltip,
        },
    )


def roofline(kernels: Rows, roof: Mapping[str, Any]) -> Spec:
    """GFLOP/s over operations per byte, under what this machine reaches."""
    dots = [
        {"kernel": k["kernel"], "intensity": k["intensity"], "gflops": k["gflops"], "us": k["us"], "dtype": k["dtype"]}
        for k in kernels
        if k["intensity"] > 0 and k["gflops"] > 0
    ]
    dtypes = sorted({dot["dtype"] for dot in dots if dot["dtype"] in roof["gflops"]})
    edges = [dot["intensity"] for dot in dots] or [1.0]
    low, high = min(*edges, 0.1), max(*edges, 100.0)
    lines = []
    for dtype in dtypes:
        peak = roof["gflops"][dtype]
        knee = peak / roof["gbs"]
        for x in (low, min(max(knee, low), high), high):
            lines.append({"dtype": dtype, "intensity": x, "gflops": min(peak, x * roof["gbs"])})
    decades: Spec = {"scale": {"type": "log"}, "axis": {"values": [10.0**power for power in range(-4, 7)]}}
    x = _axis("intensity", "quantitative", "operations per byte", **decades)
    y = _axis("gflops", "quantitative", "GFLOP/s", **decades)
    color = _axis("dtype", "nominal", "computes in")
    tooltip = [
        _axis("kernel", "nominal", "kernel"),
        _axis("us", "quantitative", "us", format=".1f"),
        _axis("gflops", "quantitative", "GFLOP/s", format=".1f"),
    ]
    point = {"type": "point", "filled": True, "opacity": 0.75}
    area = _axis("us", "quantitative", "us", legend=None)
    return _chart(
        320,
        layer=[
            {
                "data": {"values": lines},
                "mark": {"type": "line", "strokeDash": [5, 4]},
                "encoding": {"x": x, "y": y, "color": color},
            },
            {
                "data": {"values": dots},
                "mark": point,
                "encoding": {"x": x, "y": y, "color": color, "size": area, "tooltip": tooltip},
            },
        ],
    )


def arena(lives: Rows) -> Spec:
    """Each tensor as a rectangle: the steps that it lives over, the bytes that it takes."""
    rows = [{**life, "size": size(life["bytes"])} for life in lives]
    tooltip = [
        _axis("tensor", "nominal", "value"),
        _axis("size", "nominal", "bytes"),
        _axis("start", "quantitative", "written by step"),
        _axis("end", "quantitative", "free after step"),
    ]
    return _chart(
        280,
        data={"values": rows},
        mark={"type": "rect", "opacity": 0.75, "strokeWidth": 0.5},
        encoding={
            "x": _axis("start", "quantitative", "step"),
            "x2": {"field": "end"},
            "y": _axis("offset", "quantitative", "place in the arena, bytes", axis={"format": "~s"}),
            "y2": {"field": "top"},
            "color": _axis("bytes", "quantitative", "bytes", legend=None, scale={"scheme": "blues"}),
            "stroke": {"value": "#7f7f7f"},
            "tooltip": tooltip,
        },
    )


def verification(kernels: Rows) -> Spec:
    """How far each kernel is from its meaning, as a share of what rounding may do."""
    rows = [
        {"step": k["step"], "kernel": k["kernel"], "worst": k["worst"], "samples": k["samples"]}
        | {"judged": "right" if k["passed"] else "WRONG"}
        for k in kernels
        if isinstance(k["worst"], int | float) and k["samples"]
    ]
    occurring = {"values": [verdict for verdict in VERDICTS if any(row["judged"] == verdict for row in rows)]}
    tooltip = [
        _axis("kernel", "nominal", "kernel"),
        _axis("worst", "quantitative", "of what is allowed", format=".2f"),
        _axis("samples", "quantitative", "samples"),
    ]
    return _chart(
        220,
        data={"values": rows},
        layer=[
            {
                "mark": {"type": "point", "filled": True, "size": 45},
                "encoding": {
                    "x": _axis("step", "quantitative", "step"),
                    "y": _axis("worst", "quantitative", "share of what is allowed"),
                    "color": _axis("judged", "nominal", "", scale={"domain": VERDICTS}, legend=occurring),
                    "tooltip": tooltip,
                },
            },
            {"mark": {"type": "rule", "strokeDash": [5, 4]}, "encoding": {"y": {"datum": 1}}},
        ],
    )


def tuning(moments: Rows, rules: Mapping[str, float], x_title: str) -> Spec:
    """Milliseconds over the course of tuning, a step for each round, beside what was timed as a whole."""
    lines = [{"what": what, "ms": ms} for what, ms in rules.items() if ms > 0]
    y_scale = {"zero": False}
    return _chart(
        300,
        layer=[
            {
                "data": {"values": list(moments)},
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2.5},
                "encoding": {
                    "x": _axis("at", "quantitative", x_title),
                    "y": _axis("ms", "quantitative", "milliseconds", scale=y_scale),
                    "color": _axis("what", "nominal", ""),
                    "tooltip": [_axis("at", "quantitative", x_title), _axis("ms", "quantitative", "ms", format=".3f")],
                },
            },
            {
                "data": {"values": lines},
                "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 1.5},
                "encoding": {
                    "y": _axis("ms", "quantitative", "milliseconds", scale=y_scale),
                    "color": _axis("what", "nominal", ""),
                    "tooltip": [_axis("what", "nominal", ""), _axis("ms", "quantitative", "ms", format=".3f")],
                },
            },
        ],
    )


def beside(rows: Rows) -> Spec:
    """Kernels of two packages, a bar for each."""
    return _chart(
        BAR * len(rows) + BAR,
        data={"values": list(rows)},
        mark={"type": "bar", "cornerRadiusEnd": 2},
        encoding={
            "y": _axis("kernel", "nominal", "", sort={"op": "max", "field": "us", "order": "descending"}),
            "yOffset": _axis("package", "nominal", ""),
            "x": _axis("us", "quantitative", "microseconds"),
            "color": _axis("package", "nominal", ""),
            "tooltip": [
                _axis("kernel", "nominal", "kernel"),
                _axis("package", "nominal", "package"),
                _axis("us", "quantitative", "us", format=".1f"),
            ],
        },
    )


def sizes(rows: Rows) -> Spec:
    """Bytes of each cell of a build, in parts."""
    return _chart(
        BAR * len({row["cell"] for row in rows}) + BAR,
        data={"values": list(rows)},
        mark={"type": "bar"},
        encoding={
            "y": _axis("cell", "nominal", "", sort=None),
            "x": _axis("bytes", "quantitative", "bytes", axis={"format": "~s"}),
            "color": _axis("part", "nominal", ""),
            "tooltip": [
                _axis("cell", "nominal", "cell"),
                _axis("part", "nominal", "part"),
                _axis("size", "nominal", ""),
            ],
        },
    )
