"""A page: sections of facts, a plot, a table. What a model or a user names is text in it and never markup."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from modelc import __version__
from modelc.errors import ConfigError, OutputError, extra
from modelc.report.charts import Spec
from modelc.report.drawing import HEIGHT, WIDTH, Drawing
from modelc.scratch import beside

EXTRA = f"it draws with Jinja2 and Vega-Lite: {extra('report')}"


@dataclass(frozen=True)
class Column:
    name: str
    number: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Section:
    title: str
    text: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    chart: Spec | None = None
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    open: bool = False
    drawing: Drawing | None = None


def html(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole page as one text. Raises ConfigError where what it is made with is not installed."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise ConfigError(f"a report cannot be made: {EXTRA}") from None
    loader = FileSystemLoader(Path(__file__).parent)
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.j2")
    plots = {f"plot{number}": s.chart for number, s in enumerate(sections, 1) if s.chart is not None}
    return template.render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        version=__version__,
        box=(WIDTH, HEIGHT),
        plots=Markup(_in_script(plots)) if plots else "",
        library=Markup(_library()) if plots else "",
    )


def write_page(path: Path, text: str) -> None:
    """Raises OutputError."""
    try:
        with beside(path, folder=False) as made:
            made.write_text(text, encoding="utf-8", errors="backslashreplace")
            os.replace(made, path)
    except OSError as error:
        raise OutputError(f"the report {path} cannot be written: {error.strerror}") from None


def _in_script(plots: Any) -> str:
    """JSON that ends no script: what begins a tag is escaped."""
    return json.dumps(plots, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed, as one script."""
    try:
        from vl_convert import javascript_bundle
    except ImportError:
        raise ConfigError(f"a report cannot be made: {EXTRA}") from None
    script = "window.vegaEmbed = vegaEmbed;"
    bundle: str = javascript_bundle(script)
    return bundle.replace("</script", "<\\/script")
