"""How build systems find a package: a configuration for CMake, and one for pkg-config. Neither says where the package
lies, so it may be moved."""

from __future__ import annotations

from collections.abc import Mapping

from modelc.package.form import Form
from modelc.package.spec import PackageSpec
from modelc.target.system import ANDROID, LINUX, WASI, WINDOWS


def build_system_texts(spec: PackageSpec) -> Mapping[str, str]:
    """The texts by file name: none of a module of WebAssembly, which no compiler links."""
    form = spec.form
    if form.on is WASI:
        return {}
    version = spec.versions.get("modelc", "0")
    return {f"{form.prefix}Config.cmake": _cmake(form), f"{form.prefix}.pc": _pkg_config(form, spec.name, version)}


def _libraries(form: Form) -> list[str]:
    """What static code is linked with."""
    return [*["m"] * (form.on in (LINUX, ANDROID)), *["pthread"] * (not form.freestanding)]


def _kinds(form: Form) -> tuple[str, ...]:
    return tuple(kind for kind in form.emit if kind != "rust")


def _cmake(form: Form) -> str:
    name, first = form.prefix, _kinds(form)[0]
    targets = "".join(_target(form, kind, name if kind == first else f"{name}_{kind}") for kind in _kinds(form))
    return (
        f"# The package for CMake:\n#\n#     find_package({name} CONFIG REQUIRED PATHS THE-FOLDER-OF-THIS-FILE)\n"
        f"#     target_link_libraries(app {name}::{name})\n#\n"
        f"# {name}_PACKAGE is the folder, which {name}_open takes.\n\n"
        f'set({name}_PACKAGE "${{CMAKE_CURRENT_LIST_DIR}}")\n{targets}'
    )


def _target(form: Form, kind: str, name: str) -> str:
    """A target with the package's headers; of several forms all but the first are NAME_a or NAME_o."""
    target, file = f"{form.prefix}::{name}", f'"${{CMAKE_CURRENT_LIST_DIR}}/{form.file_of(kind)}"'
    properties = {"INTERFACE_INCLUDE_DIRECTORIES": '"${CMAKE_CURRENT_LIST_DIR}"'}
    if kind == "so":
        properties["IMPORTED_LOCATION"] = file
        if form.on is WINDOWS:
            properties["IMPORTED_IMPLIB"] = f'"${{CMAKE_CURRENT_LIST_DIR}}/{form.beside[0]}"'
        else:
            properties["IMPORTED_SONAME"] = form.library if form.on is LINUX else f'"@rpath/{form.library}"'
    elif kind == "a":
        properties |= {"IMPORTED_LOCATION": file, "INTERFACE_LINK_LIBRARIES": f'"{";".join(_libraries(form))}"'}
    else:
        properties["INTERFACE_LINK_LIBRARIES"] = ";".join([file[:-1], *_libraries(form)]) + '"'
    lines = "".join(f"        {key} {value}\n" for key, value in properties.items())
    made_as = {"so": "SHARED", "a": "STATIC", "o": "INTERFACE"}[kind]
    return (
        f"\nif(NOT TARGET {target})\n    add_library({target} {made_as} IMPORTED)\n"
        f"    set_target_properties({target} PROPERTIES\n{lines}    )\nendif()\n"
    )


def _pkg_config(form: Form, model: str, version: str) -> str:
    """`--static` links with the static library too, where there is one beside the shared one."""
    static = "".join(f" -l{library}" for library in _libraries(form))
    if "so" in form.emit:
        libraries = f"Libs: -L${{package}} -l{form.prefix}\n" + f"Libs.private:{static}\n" * ("a" in form.emit)
    else:
        libraries = f"Libs: ${{package}}/{form.code}{static}\n"
    return (
        "# The package for pkg-config, where PKG_CONFIG_PATH has its folder.\npackage=${pcfiledir}\n\n"
        f"Name: {form.prefix}\nDescription: The model {_plain(model)}, compiled by modelc\nVersion: {version}\n"
        f"Cflags: -I${{package}}\n{libraries}"
    )


def _plain(model: str) -> str:
    """A model's name without what pkg-config would read as its own: comments, variables, lines."""
    return "".join(c for c in model if c.isprintable() and c not in "#$\\")
