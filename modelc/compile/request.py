"""What is asked for: one frozen Request, which the command line, a call of the library and a configuration fill."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.compile.config import Config, check_precision, load_config
from modelc.compile.inputs import Flags
from modelc.compile.shapes import GivenShapes, dim_sizes, shape_sets
from modelc.compile.stages import STAGES
from modelc.errors import ConfigError
from modelc.frontend.load.given import UNNAMED, ModelSource
from modelc.frontend.quantize.recipe import INT8, Recipe
from modelc.frontend.steering.flags import Given
from modelc.package.form import Form
from modelc.target import Target, load_target
from modelc.verb import Progress


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `compile` and `tune` are both asked for; modelc.compile says what each field is."""

    shapes: GivenShapes | Sequence[GivenShapes] = ()
    dims: Mapping[str, int | Sequence[int]] | None = None
    constants: Mapping[str, Given] | None = None
    inputs: Mapping[str, NDArray[Any]] | None = None
    states: Mapping[str, str] | None = None
    pad_dims: str | Sequence[str] = ()
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
            shape_sets(self.shapes),
            dim_sizes(self.dims or {}),
            self.constants or {},
            self.states or {},
            several(self.pad_dims),
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
    """What modelc.compile is asked for, but for a calibration; it says what each field is. A `recipe` (modelc.quantize)
    is a calibration's: the model is quantized by it first."""

    model: ModelSource
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
    emit: str | Sequence[str] = field(default=(), kw_only=True)
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
        asked = (self.prefix, several(self.emit), self.embed_params, self.freestanding, self.libc, self.cc, self.ar)
        return Form.of(self.path.stem, *asked, triple)

    @property
    def path(self) -> Path:
        """The model's file. One in memory is put into a file before anything is asked for (modelc.compile)."""
        assert isinstance(self.model, str | os.PathLike)
        return Path(self.model)

    @property
    def name(self) -> str:
        """What a model in memory is called: as its package is."""
        return UNNAMED if self.output is None else Path(self.output).stem or UNNAMED

    @property
    def place(self) -> Path:
        """Where the package goes."""
        return default_place(self.path, self.target) if self.output is None else Path(self.output)


def default_place(model: Path, target: str | Path | Target | None) -> Path:
    """Where the package of a model goes that nobody says a place for: packages for several targets have several.
    Raises TargetError."""
    named = None if target in (None, "native") else named_target(target)
    return Path(f"{model.stem}{'' if named is None else f'.{named.name}'}.modelc")


def several(names: str | Sequence[str]) -> tuple[str, ...]:
    """What was given, which may be one name."""
    return (names,) if isinstance(names, str) else tuple(names)


def named_target(target: str | Path | Target | None) -> Target | None:
    """The target of that name or file, if one is given. Raises TargetError."""
    return load_target(target) if isinstance(target, str | Path) else target
