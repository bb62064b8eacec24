"""configs/*.yaml: the parameters of the pipeline's stages, read strictly."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from modelc.compile.request import BY_NAME, Inputs
from modelc.errors import ConfigError
from modelc.passes import Spec, make_pass
from modelc.policy import SCHEDULES, Policy
from modelc.target import strict_yaml
from modelc.target.section import shown
from modelc.verify.compare import F16, Tolerance
from modelc.verify.kernels.samples import EFFORTS

MAX_FILE = 1 << 20


PRECISIONS = ("f32", "bf16", "f16", "auto")
SECTIONS = ("inputs", "simplify", "precision", "partition", "layout", "schedule", "tune", "codegen", "verify")
JOINT = 0.3  # of tune's budget, where a configuration does not say


@dataclass(frozen=True)
class Verification:
    """How a package is compared with ONNX Runtime: |a - b| <= atol + rtol * |b|, on `samples` drawn inputs; `bf16`
    holds in its place for outputs that were computed through bfloat16, `f16` for those that were in float16. `check`:
    how many numbers of each kernel are judged (quick, default, thorough)."""

    rtol: float
    atol: float
    samples: int
    seed: int
    check: str
    bf16: Tolerance
    f16: Tolerance


@dataclass(frozen=True)
class LayoutSettings:
    """`search`: whether values are stored as costs least, or row-major, as in the model; `propagate`: whether layouts
    spread through maps, or hold for complex operators alone, with conversions around each; `blocked`: whether layouts
    that split a dimension by the vector's lanes are among those to choose from: N C/c H W c, and packed operands of
    matrix products."""

    search: bool
    propagate: bool
    blocked: bool


@dataclass(frozen=True)
class TuneSettings:
    """`joint`: the share of tune's budget in which layouts, and where Tasks end, are searched with loops inside; 0:
    loops alone are searched."""

    joint: float = JOINT


@dataclass(frozen=True)
class Config:
    """`inputs`: what is fixed of the model's inputs. `simplify`: the passes over the Graph, in order, in the words of
    modelc.passes. `policy`: what of Winograd, Strassen, intrinsics, attention and bfloat16 is allowed. `layout`: how
    values are stored. `tune`: how the budget of tuning is divided. `flush_denormals`: whether a package computes with
    subnormal numbers taken as zero. `check_addresses`: whether a run looks at indices and lengths in its data before it
    addresses memory by them."""

    inputs: Inputs
    simplify: tuple[Spec, ...]
    policy: Policy
    layout: LayoutSettings
    flush_denormals: bool
    check_addresses: bool
    verify: Verification
    tune: TuneSettings = TuneSettings()

    def allowing(self, **changes: Any) -> Config:
        """This configuration with another policy: `changes` are fields of Policy."""
        return replace(self, policy=replace(self.policy, **changes))

    def to_json(self) -> dict[str, Any]:
        """The tree of the YAML file that says the same."""
        return {
            "inputs": {
                **{key: dict(getattr(self.inputs, key)) for key in BY_NAME if self.inputs.bounds or key != "bounds"},
                "dims": {name: list(sizes) for name, sizes in self.inputs.dims.items()},
                "pad_dims": list(self.inputs.pad_dims),
            },
            "simplify": list(self.simplify),
            "precision": self.policy.precision,
            "partition": {"attention": self.policy.attention},
            "layout": asdict(self.layout),
            "schedule": {name: getattr(self.policy, name) for name in SCHEDULES},
            "tune": asdict(self.tune),
            "codegen": {"flush_denormals": self.flush_denormals, "check_addresses": self.check_addresses},
            "verify": asdict(self.verify),
        }


def list_configs() -> tuple[str, ...]:
    """The names that load_config knows."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def load_config(name_or_path: str | os.PathLike[str] = "default") -> Config:
    """A shipped configuration by name, or the YAML file at a path. Raises ConfigError that names what is wrong."""
    name = os.fspath(name_or_path)
    is_path = os.sep in name or name.endswith((".yaml", ".yml"))
    if not is_path and name not in list_configs():
        raise ConfigError(
            f"configuration {name!r} is unknown; expected {', '.join(list_configs())}, or the path of a .yaml file"
        )
    path = Path(name) if is_path else _folder() / f"{name}.yaml"
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} cannot be read as a configuration: it is no file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {error.strerror}") from None
    if len(data) > MAX_FILE:
        raise ConfigError(f"{path} is not a configuration: it is larger than {MAX_FILE} bytes")
    try:
        tree = strict_yaml.load(data.decode())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path} is not YAML that modelc reads: {' '.join(str(error).split())}") from None
    return parse_config(tree, str(path))


def parse_config(tree: Any, source: str) -> Config:
    """A Config from the tree of its YAML. Every key must be there, and no other. Raises ConfigError."""
    if isinstance(tree, dict):
        tree = {"tune": {"joint": JOINT}, **tree}  # which configurations, and choices, of before it lack
        if isinstance(tree.get("schedule"), dict):
            tree["schedule"] = {"strassen": False, **tree["schedule"]}  # they did without
    top = _section(tree, source, "", SECTIONS)
    parts = _section(top["partition"], source, "partition", ("attention",))
    layout = _section(top["layout"], source, "layout", ("search", "propagate", "blocked"))
    schedule = _section(top["schedule"], source, "schedule", SCHEDULES)
    codegen = _section(top["codegen"], source, "codegen", ("flush_denormals", "check_addresses"))
    tune = _section(top["tune"], source, "tune", ("joint",))
    if isinstance(top["verify"], dict):
        # configurations, and choices, of before lack them
        top["verify"] = {"check": "default", "f16": asdict(F16), **top["verify"]}
    check = _section(top["verify"], source, "verify", ("rtol", "atol", "samples", "seed", "check", "bf16", "f16"))
    passes = top["simplify"]
    if not isinstance(passes, list) or not all(isinstance(one, str | dict) for one in passes):
        raise ConfigError(f"{source}: simplify is {shown(passes)}; expected a list of passes")
    for one in passes:
        make_pass(one)
    return Config(
        inputs=_inputs(top["inputs"], source),
        simplify=tuple(passes),
        policy=Policy(
            **{name: _flag(schedule, source, f"schedule.{name}") for name in SCHEDULES},
            attention=_flag(parts, source, "partition.attention"),
            precision=check_precision(top["precision"], f"{source}: precision"),
        ),
        layout=LayoutSettings(
            search=_flag(layout, source, "layout.search"),
            propagate=_flag(layout, source, "layout.propagate"),
            blocked=_flag(layout, source, "layout.blocked"),
        ),
        tune=TuneSettings(joint=_share(tune, source, "tune.joint")),
        flush_denormals=_flag(codegen, source, "codegen.flush_denormals"),
        check_addresses=_flag(codegen, source, "codegen.check_addresses"),
        verify=Verification(
            rtol=_number(check, source, "verify.rtol"),
            atol=_number(check, source, "verify.atol"),
            samples=_whole(check, source, "verify.samples", 1),
            seed=_whole(check, source, "verify.seed", 0),
            check=_effort(check, source, "verify.check"),
            bf16=_tolerance(check["bf16"], source, "verify.bf16"),
            f16=_tolerance(check["f16"], source, "verify.f16"),
        ),
    )


def _inputs(tree: Any, source: str) -> Inputs:
    if isinstance(tree, dict):  # configurations, and choices, of before lack them
        tree = {"states": {}, "pad_dims": [], "pad_values": {}, "bounds": {}, **tree}
    rows = [row for row in fields(Inputs) if row.name != "shapes"]
    section = dict(_section(tree, source, "inputs", tuple(row.name for row in rows)))
    for row in rows:
        place, given = f"{source}: inputs.{row.name}", section[row.name]
        if row.name == "pad_dims":
            if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
                raise ConfigError(f"{place} is {shown(given)}; expected a list of names")
            section["pad_dims"] = tuple(dict.fromkeys(given))
            continue
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
            raise ConfigError(f"{place} is {shown(given)}; expected a mapping from names")
        for name, value in given.items():
            if not row.metadata["fits"](value):
                raise ConfigError(f"{place}.{name} is {shown(value)}; expected {row.metadata['expected']}")
    dims = {name: tuple(size) if isinstance(size, list) else (size,) for name, size in section["dims"].items()}
    return Inputs(**{**section, "dims": dims})


def check_precision(value: Any, place: str) -> str:
    """`value`, if it is a precision. Raises ConfigError."""
    if value not in PRECISIONS:
        raise ConfigError(f"{place} is {shown(value)}; expected {', '.join(PRECISIONS)}")
    return str(value)


def _section(tree: Any, source: str, path: str, keys: tuple[str, ...]) -> dict[str, Any]:
    place = f"{source}: {path}" if path else source
    if not isinstance(tree, dict):
        raise ConfigError(f"{place} is {shown(tree)}; expected a mapping with {', '.join(keys)}")
    for key in tree:
        if key not in keys:
            raise ConfigError(f"{place} has an unknown key {shown(key)}; expected {', '.join(keys)}")
    if missing := [key for key in keys if key not in tree]:
        raise ConfigError(f"{place} lacks the key {missing[0]!r}; expected {', '.join(keys)}")
    return tree


def _value(section: dict[str, Any], path: str) -> Any:
    return section[path.rpartition(".")[2]]


def _flag(section: dict[str, Any], source: str, path: str) -> bool:
    value = _value(section, path)
    if not isinstance(value, bool):
        raise ConfigError(f"{source}: {path} is {shown(value)}; expected true or false")
    return value


def _number(section: dict[str, Any], source: str, path: str) -> float:
    value = _value(section, path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ConfigError(f"{source}: {path} is {shown(value)}; expected a number from 0 (1e-4 is written 1.0e-4)")
    return float(value)


def _tolerance(tree: Any, source: str, path: str) -> Tolerance:
    section = _section(tree, source, path, ("rms", "largest"))
    return Tolerance(_number(section, source, f"{path}.rms"), _number(section, source, f"{path}.largest"))


def _share(section: dict[str, Any], source: str, path: str) -> float:
    value = _value(section, path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigError(f"{source}: {path} is {shown(value)}; expected a share from 0 to below 1, such as 0.3")
    return float(value)


def _whole(section: dict[str, Any], source: str, path: str, least: int) -> int:
    value = _value(section, path)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
        raise ConfigError(f"{source}: {path} is {shown(value)}; expected a whole number from {least}")
    return value


def _effort(section: dict[str, Any], source: str, path: str) -> str:
    value = _value(section, path)
    if value not in EFFORTS:
        raise ConfigError(f"{source}: {path} is {shown(value)}; expected one of {', '.join(EFFORTS)}")
    return str(value)


def _folder() -> Path:
    """In a wheel the files are package data; in a checkout they lie beside the package."""
    installed = Path(str(files("modelc"))) / "data" / "configs"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "configs"
