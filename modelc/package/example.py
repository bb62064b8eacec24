"""example.c of a package: the runtime's example in the names of the model."""

from __future__ import annotations

import re

from modelc.package.form import Form
from modelc.package.header import functions_of
from modelc.package.sources import RUNTIME

MOST_LIBRARIES = "-lm -pthread"  # of the system's that a static library is linked with


def example_text(form: Form) -> str:
    """The text of example.c."""
    text = (RUNTIME / ("example_bare.c" if form.freestanding else "example.c")).read_text()
    for function in functions_of(form.freestanding):
        text = re.sub(rf"\bmodelc_{function.name}\(", f"{form.prefix}_{function.name}(", text)
    return text.replace("model.h", form.header).replace("BUILD", build_command(form))


def build_command(form: Form) -> str:
    """How a program is linked with what the package has first."""
    if "so" in form.emit:
        return f"cc -O2 example.c ./{form.library} -Wl,-rpath,'$ORIGIN' -o example"
    library = form.archive if "a" in form.emit else form.object
    return f"cc -O2 example.c {library} {'-lm' if form.freestanding else MOST_LIBRARIES} -o example"
