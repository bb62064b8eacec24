"""configs/*.yaml: the parameters of the pipeline's stages, read strictly."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from modelc.compile.fixed import BY_NAME, Inputs
from modelc.compile.opened import Open
from modelc.compile.options import sizes
from modelc.errors import ConfigError, TargetError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.steering.states import MANY, states_by_name
from modelc.passes import Spec, make_pass
from modelc.policy import SCHEDULES, Policy
from modelc.target.passes import is_spec
from modelc.target.section import parse_yaml, read_text, shown
from modelc.verify.compare import F16, Tolerance
from modelc.verify.kernels.samples import EFFORTS

PRECISIONS = ("f32", "bf16", "f16", "auto")
PARAMS = ("stored", "opened", "auto")
AS_TARGET = "target"  # a list of passes that a configuration leaves to the target
JOINT = 0.0  # of tune's budget, where a configuration does not say


class Value(NamedTuple):
    """Whether a value of a configuration fits, and the words for one that does."""

    fits: Callable[[Any], bool]
    expected: str


FLAG = Value(lambda value: isinstance(value, bool), "true or false")
NUMBER = Value(lambda n: type(n) in (int, float) and 0 <= n < 1e9, "a number from 0 (1e-4 is written 1.0e-4)")
SHARE = Value(lambda n: type(n) in (int, float) and 0 <= n < 1, "a share from 0 to below 1, such as 0.3")
PASS_LIST = Value(
    lambda passes: passes == AS_TARGET or (isinstance(passes, list) and all(map(is_spec, passes))),
    f"{AS_TARGET} (the list of its description, or else modelc's own), or a list of passes",
)
TOLERANCE = {"rms": NUMBER, "largest": NUMBER}
SECTIONS: Mapping[str, Any] = {
    "inputs": Value(lambda tree: True, ""),  # which has a table of its own: Inputs
    "simplify": PASS_LIST,
    "precision": Value(lambda name: name in PRECISIONS, ", ".join(PRECISIONS)),
    "partition": {"attention": FLAG},
    "layout": {"search": FLAG, "propagate": FLAG, "blocked": FLAG},
    "schedule": {**dict.fromkeys((*SCHEDULES, "records"), FLAG), "passes": PASS_LIST},
    "tune": {"joint": SHARE},
    "codegen": {
        "flush_denormals": FLAG,
        "check_addresses": FLAG,
        "params": Value(lambda name: name in PARAMS, ", ".join(PARAMS)),
    },
    "verify": {
        "rtol": NUMBER,
        "atol": NUMBER,
        "samples": Value(lambda n: type(n) is int and 1 <= n < 1 << 31, "a whole number from 1"),
        "seed": Value(lambda n: type(n) is int and 0 <= n < 1 << 31, "a whole number from 0"),
        "check": Value(lambda name: name in EFFORTS, f"one of {', '.join(EFFORTS)}"),
        "bf16": TOLERANCE,
        "f16": TOLERANCE,
    },
}
LATER: Mapping[str, Mapping[str, Any]] = {  # keys that configurations, and choices, of before them lack
    "inputs": {"states": {}, "bounds": {}},
    "schedule": {"strassen": False, "parts": False, "chains": False, "records": False, "passes": AS_TARGET},
    "codegen": {"params": "auto"},
    "verify": {"check": "default", "f16": asdict(F16)},
}
GONE = ("pad_dims", "pad_values")  # of `inputs`, which those of before have: nothing is filled up any more


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
    that split a dimension, by a parameter, are among those to choose from where they promise more than the margin of
    the price: N C/c H W c, and operands of matrix products in panels."""

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
    modelc.passes, and `schedule` those over Blocks, of modelc.space.passes; None: as the target says. `policy`: what of
    Winograd, Strassen, intrinsics, attention and bfloat16 is allowed. `layout`: how values are stored. `tune`: how the
    budget of tuning is divided. `flush_denormals`: whether a package computes with subnormal numbers taken as zero.
    `check_addresses`: whether a run looks at indices and lengths in its data before it addresses memory by them.
    `params`: whether sums of weights are stored, or made when the package is opened; auto: where they make parameters
    too large otherwise."""

    inputs: Inputs
    simplify: tuple[Spec, ...] | None
    schedule: tuple[Spec, ...] | None
    policy: Policy
    layout: LayoutSettings
    flush_denormals: bool
    check_addresses: bool
    params: str
    verify: Verification
    tune: TuneSettings = TuneSettings()

    def allowing(self, **changes: Any) -> Config:
        """This configuration with another policy: `changes` are fields of Policy."""
        return replace(self, policy=replace(self.policy, **changes))

    def fixing(self, inputs: Inputs) -> Config:
        """This configuration with what else is fixed of inputs that a package keeps: states and bounds."""
        section = self.inputs
        merged = inputs.over(section)
        return replace(self, inputs=replace(merged, shapes=(), dims=section.dims, constants=section.constants))

    def naming(self, model: Path) -> Config:
        """This configuration with the states of a model by name, of which patterns may say several. Raises
        ModelError."""
        if not any(MANY in name for name in self.inputs.states):
            return self
        states = states_by_name(read_outline(model).graph, self.inputs.states)
        return replace(self, inputs=replace(self.inputs, states=states))

    def to_json(self) -> dict[str, Any]:
        """The tree of the YAML file that says the same."""
        return {
            "inputs": {
                **{key: dict(getattr(self.inputs, key)) for key in BY_NAME if self.inputs.bounds or key != "bounds"},
                "dims": {
                    name: str(sizes) if isinstance(sizes, Open) else list(sizes)
                    for name, sizes in self.inputs.dims.items()
                },
            },
            "simplify": _listed(self.simplify),
            "precision": self.policy.precision,
            "partition": {"attention": self.policy.attention},
            "layout": asdict(self.layout),
            "schedule": {
                **{name: getattr(self.policy, name) for name in (*SCHEDULES, "records")},
                "passes": _listed(self.schedule),
            },
            "tune": asdict(self.tune),
            "codegen": {name: getattr(self, name) for name in SECTIONS["codegen"]},
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
    return parse_config(read_tree(path, "a configuration"), str(path))


def read_tree(path: Path, what: str) -> Any:
    """The tree of a small YAML file; `what` it should be is said in errors. Raises ConfigError."""
    try:
        return parse_yaml(read_text(path, what), str(path))
    except TargetError as error:
        raise ConfigError(str(error)) from None


def parse_config(tree: Any, source: str) -> Config:
    """A Config from the tree of its YAML. Every key must be there, and no other. Raises ConfigError."""
    if isinstance(tree, dict):
        tree = {"tune": {"joint": JOINT}, **tree}
        tree |= {name: {**keys, **tree[name]} for name, keys in LATER.items() if isinstance(tree.get(name), dict)}
        if isinstance(of_inputs := tree.get("inputs"), dict):
            for key in GONE:
                if of_inputs.get(key):
                    raise ConfigError(
                        f"{source}: inputs.{key} is {shown(of_inputs[key])}: nothing is filled up any more; leave "
                        "a dimension open in `dims` instead, such as seq: 1..128"
                    )
            tree["inputs"] = {key: given for key, given in of_inputs.items() if key not in GONE}
    top = _checked(tree, SECTIONS, source)
    simplify, schedule = _passes(top["simplify"]), _passes(top["schedule"].pop("passes"))
    for place, spec in enumerate(simplify or ()):
        make_pass(spec, place=f"{source}: simplify[{place}]")
    verify = {**top["verify"], **{name: Tolerance(**top["verify"][name]) for name in ("bf16", "f16")}}
    return Config(
        inputs=_inputs(top["inputs"], source),
        simplify=simplify,
        schedule=schedule,
        policy=Policy(**top["schedule"], **top["partition"], precision=top["precision"]),
        layout=LayoutSettings(**top["layout"]),
        tune=TuneSettings(**top["tune"]),
        **top["codegen"],
        verify=Verification(**verify),
    )


def _passes(listed: Any) -> tuple[Spec, ...] | None:
    return None if listed == AS_TARGET else tuple(listed)


def _listed(passes: tuple[Spec, ...] | None) -> str | list[Spec]:
    return AS_TARGET if passes is None else list(passes)


def _checked(tree: Any, sections: Mapping[str, Any], source: str, path: str = "") -> dict[str, Any]:
    """What a section says, with all numbers as what they are declared to be. Raises ConfigError."""
    section = dict(_section(tree, source, path, tuple(sections)))
    for key, value in section.items():
        wanted, place = sections[key], f"{path}.{key}" if path else key
        if isinstance(wanted, dict):
            section[key] = _checked(value, wanted, source, place)
        elif not wanted.fits(value):
            raise ConfigError(f"{source}: {place} is {shown(value)}; expected {wanted.expected}")
        elif wanted in (NUMBER, SHARE):
            section[key] = float(value)
    return section


def _inputs(tree: Any, source: str) -> Inputs:
    rows = [row for row in fields(Inputs) if row.name != "shapes"]
    section = dict(_section(tree, source, "inputs", tuple(row.name for row in rows)))
    for row in rows:
        place, given = f"{source}: inputs.{row.name}", section[row.name]
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
            raise ConfigError(f"{place} is {shown(given)}; expected a mapping from names")
        for name, value in given.items():
            if not row.metadata["fits"](value):
                raise ConfigError(f"{place}.{name} is {shown(value)}; expected {row.metadata['expected']}")
    dims = {name: _numbers(given, f"{source}: inputs.dims.{name}") for name, given in section["dims"].items()}
    return Inputs(**{**section, "dims": dims})


def _numbers(given: Any, place: str) -> Sequence[int]:
    """What a configuration says of a dimension. Raises ConfigError."""
    if not isinstance(given, str):
        return tuple(given) if isinstance(given, list) else (given,)
    try:
        numbers = sizes(given)
    except ValueError as error:
        raise ConfigError(f"{place} is {shown(given)}; expected {error}") from None
    assert numbers is not None, "it was checked"
    return numbers


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


def _folder() -> Path:
    """In a wheel the files are package data; in a checkout they lie beside the package."""
    installed = Path(str(files("modelc"))) / "data" / "configs"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "configs"
