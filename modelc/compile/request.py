"""What is asked for: one frozen Request, which the command line, a call of the library and a configuration fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from numpy.typing import NDArray

from modelc.compile.choices import Shapes
from modelc.compile.config import Config, check_precision, load_config
from modelc.compile.inputs import Flags
from modelc.compile.stages import STAGES, Progress
from modelc.errors import ConfigError
from modelc.frontend.quantize.recipe import INT8, Recipe
from modelc.frontend.steering.flags import Given
from modelc.package.form import Form
from modelc.target import Target, load_target

P = ParamSpec("P")
Asked = TypeVar("Asked")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `compile` and `tune` are both asked for.

    Each of `shapes` makes a variant; `dims` fixes free dimensions by name, each of several numbers making a variant;
    `constants` fixes inputs; `inputs` is data to verify with, whose shapes hold where neither `shapes` nor `dims` are
    given; `states` names inputs that the package keeps from run to run, and for each the output that it is after a run;
    `pad_dims` names dimensions along which inputs may be shorter than a variant's, and are filled up with zeros, or
    with what `pad_values` say by input; `bounds` says the most that values of the model can be which sizes are made of,
    where these depend on data and nothing else bounds them.
    `config` is a Config, a name or a file; `precision` (f32, bf16, f16, auto; int8 where the model is calibrated) is
    said in place of the configuration's.
    `database` is one of modelc.tune: True, the user's own; False, none. `progress` is told each stage and what it is
    at."""

    shapes: Sequence[Shapes] = ()
    dims: Mapping[str, int | Sequence[int]] | None = None
    constants: Mapping[str, Given] | None = None
    inputs: Mapping[str, NDArray[Any]] | None = None
    states: Mapping[str, str] | None = None
    pad_dims: Sequence[str] = ()
    pad_values: Mapping[str, float] | None = None
    bounds: Mapping[str, int] | None = None
    config: str | Path | Config | None = None
    precision: str | None = None
    database: str | Path | bool = True
    progress: Progress | None = None

    @property
    def flags(self) -> Flags:
        """What is said of the model's inputs."""
        return Flags(
            tuple(self.shapes),
            self.dims or {},
            self.constants or {},
            self.states or {},
            tuple(self.pad_dims),
            self.pad_values or {},
            self.bounds or {},
        )

    def settings(self, otherwise: Config | None = None) -> Config:
        """The configuration, in the precision that is asked for: `otherwise`, or the default, where none is named.
        Raises ConfigError."""
        config = self.config
        if config is None:
            named = otherwise if otherwise is not None else load_config()
        else:
            named = config if isinstance(config, Config) else load_config(config)
        if self.precision is None:
            return named
        if self.precision == INT8:  # but for what a Recipe has in float16
            return named.allowing(precision="f32")
        return named.allowing(precision=check_precision(self.precision, "precision"))

    def say(self, stage: str, text: str) -> None:
        if self.progress is not None:
            self.progress(stage, text)


@dataclass(frozen=True)
class CompileRequest(Request):
    """A package of `model` at `output` (MODEL.modelc, or MODEL.TARGET.modelc where a target is named, in the working
    folder). Beside what every Request has:

    `target` is a name, a .yaml file or a Target (native). `threads` compile kernels. `verify`: the package is compared
    with ONNX Runtime; where it is wrong there is none, unless `keep_unverified`. Nothing follows the stage
    `stop_after`; the text of the IR after each stage goes to the folder `dump_dir`. `choices` is the choices.json of an
    earlier package: target, shapes, constants and config are taken from it where they are not given, and the package is
    the same byte for byte. What the choices do not name is constructed; of another model's choices, and for other
    shapes, the Tasks that occur are taken. Without `choices`, of each Task the Candidate is taken that the database has
    measured to be the fastest for just this target and version of modelc, on `run_threads` threads. `prefix`, `emit`,
    `embed_params`, `freestanding`, `libc`, `cc` and `ar` say what the package is made as (modelc.package.Form),
    `max_params` ("1.2x", "4MB"), `max_arena` and `max_library` how large it may be. With a `recipe` (modelc.quantize),
    or `choices` that have one, the model is quantized first, and the package is compared with that; it is also written
    to `emit_onnx`. `weights` (int4, whose activations are bytes by block, or int4-float) has weights of 4 bits made of
    float32, with a scale for each `block` (32) along the depth."""

    model: str | Path
    target: str | Path | Target | None = None
    output: str | Path | None = None
    threads: int | None = field(default=None, kw_only=True)
    verify: bool = field(default=True, kw_only=True)
    keep_unverified: bool = field(default=False, kw_only=True)
    stop_after: str | None = field(default=None, kw_only=True)
    dump_dir: str | Path | None = field(default=None, kw_only=True)
    choices: str | Path | None = field(default=None, kw_only=True)
    run_threads: int = field(default=1, kw_only=True)
    prefix: str | None = field(default=None, kw_only=True)
    emit: Sequence[str] = field(default=(), kw_only=True)
    embed_params: bool = field(default=False, kw_only=True)
    freestanding: bool = field(default=False, kw_only=True)
    libc: str = field(default="", kw_only=True)
    cc: str = field(default="", kw_only=True)
    ar: str = field(default="", kw_only=True)
    max_params: str = field(default="", kw_only=True)
    max_arena: str = field(default="", kw_only=True)
    max_library: str = field(default="", kw_only=True)
    recipe: Recipe | None = field(default=None, kw_only=True)
    emit_onnx: str | Path | None = field(default=None, kw_only=True)
    weights: str | None = field(default=None, kw_only=True)
    block: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.stop_after is not None and self.stop_after not in STAGES:
            raise ConfigError(f"there is no stage {self.stop_after!r}; the stages are {', '.join(STAGES)}")
        if self.choices is not None and not isinstance(self.database, bool):
            raise ConfigError(f"{self.choices} says what is taken: give either choices or a database")

    def form(self, triple: str) -> Form:
        """What the package for a triple is made as. Raises PackageError for what makes no sense."""
        asked = (self.prefix, tuple(self.emit), self.embed_params, self.freestanding, self.libc, self.cc, self.ar)
        return Form.of(Path(self.model).stem, *asked, triple)

    @property
    def place(self) -> Path:
        """Where the package goes."""
        return default_place(self.model, self.target) if self.output is None else Path(self.output)


def default_place(model: str | Path, target: str | Path | Target | None) -> Path:
    """Where the package of a model goes that nobody says a place for: packages for several targets have several.
    Raises TargetError."""
    named = None if target in (None, "native") else named_target(target)
    return Path(f"{Path(model).stem}{'' if named is None else f'.{named.name}'}.modelc")


def named_target(target: str | Path | Target | None) -> Target | None:
    """The target of that name or file, if one is given. Raises TargetError."""
    return load_target(target) if isinstance(target, str | Path) else target


def called_by_fields(asked: Callable[P, Asked], answer: Callable[[Asked], Result]) -> Callable[P, Result]:
    """`answer` as a function of the fields of what it is asked."""

    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        return answer(asked(*args, **kwargs))

    call.__doc__ = answer.__doc__
    return call
