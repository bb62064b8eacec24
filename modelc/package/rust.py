"""A package as a crate of Rust: Cargo.toml, build.rs and PREFIX.rs beside its static library."""

from __future__ import annotations

from collections.abc import Mapping

from modelc.package.form import Form
from modelc.package.header import lines_of
from modelc.package.sources import RUNTIME
from modelc.package.spec import PackageSpec
from modelc.target.system import LINUX


def crate_files(spec: PackageSpec) -> Mapping[str, str]:
    """The texts by file name."""
    form, plan = spec.form, spec.variants[0]
    text = lines_of(form, (RUNTIME / "model.rs").read_text())
    counts = {"INPUT_COUNT": len(plan.inputs), "OUTPUT_COUNT": len(plan.outputs)}
    for word, count in counts.items():
        text = text.replace(word, str(count))
    return {
        f"{form.prefix}.rs": text.replace("PREFIX", form.prefix),
        "Cargo.toml": _manifest(form),
        "build.rs": _build(form),
    }


def _manifest(form: Form) -> str:
    name = form.prefix.replace("_", "-").rstrip("-")
    return (
        f'[package]\nname = "{name}"\nversion = "0.1.0"\nedition = "2021"\nlinks = "{form.prefix}"\n'
        f'build = "build.rs"\n\n[lib]\nname = "{form.prefix.lower()}"\npath = "{form.prefix}.rs"\n'
    )


def _build(form: Form) -> str:
    libraries = [f"static={form.prefix}", *["m"] * (form.on is LINUX)]
    lines = "".join(f'    println!("cargo:rustc-link-lib={library}");\n' for library in libraries)
    return (
        "fn main() {\n"
        '    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap();\n'
        '    println!("cargo:rustc-link-search=native={folder}");\n'
        f'{lines}    println!("cargo:rerun-if-changed={form.archive}");\n}}\n'
    )
