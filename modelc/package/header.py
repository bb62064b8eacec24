"""PREFIX.h, and what gives a model's functions their names: all from the table of functions in runtime/model.h."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from modelc.package.form import Form
from modelc.package.sources import RUNTIME

HOSTED_ALONE = frozenset({"open", "open_memory", "open_fd", "close", "profile_start", "profile_stop", "time_limit"})
BARE_ALONE = frozenset({"memory_size", "init"})


@dataclass(frozen=True)
class Function:
    """A member of modelc_api: `result NAME(parameters)`; `arguments` are the names of its parameters."""

    name: str
    result: str
    parameters: str
    arguments: tuple[str, ...]

    def declared(self, prefix: str) -> str:
        return f"{self.result}{prefix}_{self.name}({self.parameters})"


@cache
def every_function() -> tuple[Function, ...]:
    """The members of modelc_api, in order."""
    text = (RUNTIME / "model.h").read_text()
    table = re.sub(r"/\*.*?\*/", "", text[text.index("typedef struct modelc_api {") :], flags=re.DOTALL)
    functions = []
    for result, name, parameters in re.findall(r"^ +([\w ]+?\*?)\(\*(\w+)\)\(([^;]*)\);", table, flags=re.MULTILINE):
        parameters = " ".join(parameters.split())
        names = [] if parameters == "void" else [re.split(r"\W+", one)[-1] for one in parameters.split(",")]
        functions.append(
            Function(name, result if result.endswith("*") else f"{result.strip()} ", parameters, tuple(names))
        )
    return tuple(functions)


def functions_of(freestanding: bool) -> tuple[Function, ...]:
    """Those that a library has."""
    lacking = HOSTED_ALONE if freestanding else BARE_ALONE
    return tuple(f for f in every_function() if f.name not in lacking)


def header_text(form: Form) -> str:
    """PREFIX.h: the text of model.h, which another header like it does not repeat, and the model's own functions."""
    guard = f"{form.prefix.upper()}_MODELC_H"
    declared = "".join(f"{f.declared(form.prefix)};\n" for f in functions_of(form.freestanding))
    return (
        f"{(RUNTIME / 'model.h').read_text()}\n"
        f'#ifndef {guard}\n#define {guard}\n\n#ifdef __cplusplus\nextern "C" {{\n#endif\n\n'
        f"/* The functions of this model, which modelc_api describes. */\n"
        f"const modelc_api *{form.prefix}_api(void);\n{declared}\n"
        f"#ifdef __cplusplus\n}}\n#endif\n\n#endif\n"
    )


def exported_source(form: Form) -> str:
    """C text of the functions that the library exports, which call those of the runtime."""
    functions = functions_of(form.freestanding)
    inner = "".join(f"{f.declared('modelc')};\n" for f in functions)
    outer = "".join(
        f"MODELC_EXPORT {f.declared(form.prefix)} {{\n"
        f"    {'' if f.result == 'void ' else 'return '}modelc_{f.name}({', '.join(f.arguments)});\n}}\n"
        for f in functions
    )
    table = "".join(f"    .{f.name} = modelc_{f.name},\n" for f in functions)
    return (
        '#define MODELC_EXPORT __attribute__((visibility("default")))\n'
        f"{inner}static const modelc_api the_api = {{\n    .size = sizeof(modelc_api),\n{table}}};\n"
        f"MODELC_EXPORT const modelc_api *{form.prefix}_api(void) {{ return &the_api; }}\n{outer}"
    )


def exported_names(form: Form) -> tuple[str, ...]:
    return (f"{form.prefix}_api", *(f"{form.prefix}_{f.name}" for f in functions_of(form.freestanding)))


def renamed(form: Form, texts: Sequence[str]) -> tuple[str, ...]:
    """What to tell a C compiler so that the runtime's functions, which `texts` declare, begin with the prefix too: in a
    static library every name is seen by the whole program."""
    names = {name for text in texts for name in re.findall(r"\b(mc_\w+)\(", text)} | {"mc_the_model", "mc_parameters"}
    names |= {f"modelc_{f.name}" for f in functions_of(form.freestanding)}
    return tuple(f"-D{name}={form.prefix}_{name}" for name in sorted(names))


@cache
def module_functions() -> frozenset[str]:
    """The functions of C that the loader in JavaScript gives to a module."""
    text = (RUNTIME / "model.mjs").read_text()
    words = text[text.index("const C = ") : text.index("// ---- end of C")]
    names = re.findall(r"^    (\w+)(?:: |\()", words, flags=re.MULTILINE)
    real = re.search(r'"([a-z0-9 ]+)"', words)
    both = real[1].split() if real else []
    return frozenset([*names, *both, *(f"{name}f" for name in both)])
