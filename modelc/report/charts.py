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


def _bars(bars: int, rows: Rows, **encoding: Any) -> Spec:
    """Horizontal bars, so many of them above each other."""
    mark = {"type": "bar", "cornerRadiusEnd": 2}
    return _chart(BAR * bars + BAR, data={"values": list(rows)}, mark=mark, encoding=encoding)


def _text(field: str, title: str | None = None, **more: Any) -> Spec:
    return {"field": field, "type": "nominal", "title": field if title is None else title, **more}


def _number(field: str, title: str | None = None, **more: Any) -> Spec:
    return {**_text(field, title, **more), "type": "quantitative"}


def _layer(mark: str, rows: Rows, encoding: Spec, **style: Any) -> Spec:
    return {"data": {"values": list(rows)}, "mark": {"type": mark, **style}, "encoding": encoding}


US = _number("us", format=".1f")
MS = _number("ms", format=".3f")


def kernel_times(kernels: Rows) -> Spec:
    """The kernels that take most, longest first."""
    rows = [
        {"kernel": k["kernel"], "us": k["us"], "nodes": ", ".join(k["nodes"]), "dtype": k["dtype"]}
        | {"peak": k["peak_share"], "share": k["share"], "instruction": k["instruction"]}
        for k in sorted(kernels, key=lambda k: -k["us"])[:MOST_BARS]
    ]
    shares = (_number("share", "of the whole", format=".1%"), _number("peak", "of the peak", format=".0%"))
    return _bars(
        len(rows),
        rows,
        y=_text("kernel", "", sort="-x"),
        x=_number("us", "microseconds"),
        color=_text("dtype", "computes in"),
        tooltip=[_text("kernel"), _text("nodes", "ONNX nodes"), US, *shares, _text("instruction")],
    )


def roofline(kernels: Rows, roof: Mapping[str, Any]) -> Spec:
    """GFLOP/s over operations per byte, under what this machine reaches."""
    dots = [
        {name: k[name] for name in ("kernel", "intensity", "gflops", "us", "dtype")}
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
    place = {
        "x": _number("intensity", "operations per byte", **decades),
        "y": _number("gflops", "GFLOP/s", **decades),
        "color": _text("dtype", "computes in"),
    }
    tooltip = [_text("kernel"), US, _number("gflops", "GFLOP/s", format=".1f")]
    kernel = {**place, "size": _number("us", legend=None), "tooltip": tooltip}
    reached = _layer("line", lines, place, strokeDash=[5, 4])
    return _chart(320, layer=[reached, _layer("point", dots, kernel, filled=True, opacity=0.75)])


def arena(lives: Rows) -> Spec:
    """Each tensor as a rectangle: the steps that it lives over, the bytes that it takes."""
    rows = [{**life, "size": size(life["bytes"])} for life in lives]
    tooltip = [
        _text("tensor", "value"),
        _text("size", "bytes"),
        _number("start", "written by step"),
        _number("end", "free after step"),
    ]
    encoding = {
        "x": _number("start", "step"),
        "x2": {"field": "end"},
        "y": _number("offset", "place in the arena, bytes", axis={"format": "~s"}),
        "y2": {"field": "top"},
        "color": _number("bytes", legend=None, scale={"scheme": "blues"}),
        "stroke": {"value": "#7f7f7f"},
        "tooltip": tooltip,
    }
    return _chart(280, **_layer("rect", rows, encoding, opacity=0.75, strokeWidth=0.5))


def verification(kernels: Rows) -> Spec:
    """How far each kernel is from its meaning, as a share of what rounding may do."""
    rows = [
        {"step": k["step"], "kernel": k["kernel"], "worst": k["worst"], "samples": k["samples"]}
        | {"judged": "right" if k["passed"] else "WRONG"}
        for k in kernels
        if isinstance(k["worst"], int | float) and k["samples"]
    ]
    occurring = {"values": [verdict for verdict in VERDICTS if any(row["judged"] == verdict for row in rows)]}
    encoding = {
        "x": _number("step"),
        "y": _number("worst", "share of what is allowed"),
        "color": _text("judged", "", scale={"domain": VERDICTS}, legend=occurring),
        "tooltip": [_text("kernel"), _number("worst", "of what is allowed", format=".2f"), _number("samples")],
    }
    dots = {"mark": {"type": "point", "filled": True, "size": 45}, "encoding": encoding}
    limit = {"mark": {"type": "rule", "strokeDash": [5, 4]}, "encoding": {"y": {"datum": 1}}}
    return _chart(220, data={"values": rows}, layer=[dots, limit])


def tuning(moments: Rows, rules: Mapping[str, float], x_title: str) -> Spec:
    """Milliseconds over the course of tuning, a step for each round, beside what was timed as a whole."""
    lines = [{"what": what, "ms": ms} for what, ms in rules.items() if ms > 0]
    x, y = _number("at", x_title), _number("ms", "milliseconds", scale={"zero": False})
    course = {"x": x, "y": y, "color": _text("what", ""), "tooltip": [x, MS]}
    whole = {"y": y, "color": _text("what", ""), "tooltip": [_text("what", ""), MS]}
    steps = _layer("line", moments, course, interpolate="step-after", strokeWidth=2.5)
    return _chart(300, layer=[steps, _layer("rule", lines, whole, strokeDash=[6, 4], strokeWidth=1.5)])


def beside(rows: Rows) -> Spec:
    """Kernels of two packages, a bar for each."""
    return _bars(
        len(rows),
        rows,
        y=_text("kernel", "", sort={"op": "max", "field": "us", "order": "descending"}),
        yOffset=_text("package", ""),
        x=_number("us", "microseconds"),
        color=_text("package", ""),
        tooltip=[_text("kernel"), _text("package"), US],
    )


def sizes(rows: Rows) -> Spec:
    """Bytes of each cell of a build, in parts."""
    encoding = {
        "y": _text("cell", "", sort=None),
        "x": _number("bytes", axis={"format": "~s"}),
        "color": _text("part", ""),
        "tooltip": [_text("cell"), _text("part"), _text("size", "")],
    }
    return _chart(BAR * len({row["cell"] for row in rows}) + BAR, **_layer("bar", rows, encoding))
