"""The texts of a package beside its code, which need nothing of modelc: headers, an example, loaders in Python and
JavaScript, a crate of Rust, configurations of build systems. They are the runtime's, in the names of the model."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from functools import cache

from modelc.package.build_systems import build_system_texts
from modelc.package.form import Form
from modelc.package.header import functions_of, header_text
from modelc.package.sources import RUNTIME
from modelc.package.spec import PackageSpec, Plan
from modelc.target.system import LINUX, WASI

_ROOM = "modelc.runtime."


def package_texts(spec: PackageSpec) -> Mapping[str, str]:
    """The texts by file name."""
    form, plan = spec.form, spec.variants[0]
    cpp = _lines_of(form, "model.hpp").replace('#include "model.h"', f'#include "{form.header}"')
    texts = {form.header: header_text(form), f"{form.prefix}.hpp": cpp, "example.c": _example(form)}
    texts |= build_system_texts(spec)
    if "loader.py" in form.beside:
        texts["loader.py"] = loader_in_one_file()
    if form.on is WASI and form.beside:
        texts |= _javascript(form, plan)
    if "rust" in form.emit:
        counts = {"INPUT_COUNT": len(plan.inputs), "OUTPUT_COUNT": len(plan.outputs)}
        counts["OUTPUT_RANK"] = max([1, *(len(t.shape) for t in plan.outputs)])
        opened = "model_bare.rs" if form.freestanding else "model_hosted.rs"
        source = f"{_lines_of(form, 'model.rs')}\n{_lines_of(form, opened)}"
        for word, count in counts.items():
            source = source.replace(word, str(count))
        texts |= {f"{form.prefix}.rs": source, "Cargo.toml": _crate(form), "build.rs": _crate_building(form)}
    return texts


def _lines_of(form: Form, file: str) -> str:
    """A text without the lines that begin with HOSTED in a free-standing package, and those with BARE in others."""
    own, other = ("BARE ", "HOSTED ") if form.freestanding else ("HOSTED ", "BARE ")
    lines = (RUNTIME / file).read_text().splitlines()
    text = "".join(f"{line.removeprefix(own)}\n" for line in lines if not line.startswith(other))
    return text.replace("PREFIX", form.prefix)


def _example(form: Form) -> str:
    text = (RUNTIME / ("example_bare.c" if form.freestanding else "example.c")).read_text()
    for function in functions_of(form.freestanding):
        text = re.sub(rf"\bmodelc_{function.name}\(", f"{form.prefix}_{function.name}(", text)
    return text.replace("model.h", form.header).replace("BUILD", _build_command(form))


def _build_command(form: Form) -> str:
    """How a program is linked with what the package has first."""
    if "so" in form.emit:
        return f"cc -O2 example.c ./{form.library} -Wl,-rpath,'$ORIGIN' -o example"
    library = form.archive if "a" in form.emit else form.object
    return f"cc -O2 example.c {library} -lm{'' if form.freestanding else ' -pthread'} -o example"


@cache
def loader_in_one_file() -> str:
    """The text of runtime/loader.py, with that of its neighbours in the place of what is imported from them."""
    return "".join(_with_neighbours("loader", set()))


def _with_neighbours(name: str, there: set[str]) -> list[str]:
    """The lines of a file of the runtime, with those of its neighbours that are not `there` yet."""
    text = (RUNTIME / f"{name}.py").read_text()
    lines, places = text.splitlines(keepends=True), list[tuple[ast.ImportFrom, list[str]]]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_ROOM):
            neighbour = node.module.removeprefix(_ROOM)
            own = [] if neighbour in there else _with_neighbours(neighbour, there)
            there.add(neighbour)
            places.append((node, own))
    for node, own in reversed(places):
        lines[node.lineno - 1 : node.end_lineno] = own
    if name == "loader":
        return lines
    _, future, *_ = ast.parse(text).body  # a docstring, and the import from __future__: both stay out
    return lines[future.lineno :]


def _javascript(form: Form, plan: Plan) -> Mapping[str, str]:
    """The loader, its types for TypeScript, and what makes the folder a package of Node.js."""
    loader, types = ((RUNTIME / file).read_text() for file in ("model.mjs", "model.d.mts"))
    arrays = dict(re.findall(r'\["(\w+)", (\w+Array)\]', loader))
    for word, tensors in (("INPUT_TYPES", plan.inputs), ("OUTPUT_TYPES", plan.outputs)):
        rows = (f"    {json.dumps(t.name)}: {arrays.get(t.dtype, 'Uint8Array')};\n" for t in tensors)
        types = types.replace(word, "".join(rows))
    file, declared = f"{form.prefix}.mjs", f"{form.prefix}.d.mts"
    described = {
        "name": form.prefix.lower(),
        "version": "0.1.0",
        "type": "module",
        "exports": {".": {"types": f"./{declared}", "default": f"./{file}"}, f"./{form.library}": f"./{form.library}"},
        "files": [file, declared, form.library],
    }
    texts = {file: loader.replace("PREFIX", form.prefix), declared: types.replace("PREFIX", form.prefix)}
    return {**texts, "package.json": json.dumps(described, indent=2) + "\n"}


def _crate(form: Form) -> str:
    name = form.prefix.replace("_", "-").rstrip("-")
    return (
        f'[package]\nname = "{name}"\nversion = "0.1.0"\nedition = "2021"\nlinks = "{form.prefix}"\n'
        f'build = "build.rs"\n\n[lib]\nname = "{form.prefix.lower()}"\npath = "{form.prefix}.rs"\n'
    )


def _crate_building(form: Form) -> str:
    libraries = [f"static={form.prefix}", *["m"] * (form.on is LINUX)]
    lines = "".join(f'    println!("cargo:rustc-link-lib={library}");\n' for library in libraries)
    return (
        "fn main() {\n"
        '    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap();\n'
        '    println!("cargo:rustc-link-search=native={folder}");\n'
        f'{lines}    println!("cargo:rerun-if-changed={form.archive}");\n}}\n'
    )
