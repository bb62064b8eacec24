"""What is asked for: one frozen Request, which the command line, a call of the library and modelc.yaml fill. Its fields
are the table of options: flags, keys of modelc.yaml and the library's page are made of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelc.cache.store import Store, user_store
from modelc.compile.fixed import Inputs
from modelc.compile.opened import Open, is_range
from modelc.compile.options import argument, bound, constant, listed, option, pairs, shape_texts, share, sizes
from modelc.compile.stages import STAGES
from modelc.errors import ConfigError, InputError
from modelc.frontend.load.given import UNNAMED, ModelSource

if TYPE_CHECKING:  # the command line reads this table before anything is to be done
    from numpy.typing import NDArray

    from modelc.compile.config import Config
    from modelc.frontend.quantize.packing import Packing
    from modelc.frontend.quantize.recipe import Recipe
    from modelc.frontend.steering.flags import Given, Shapes
    from modelc.package.form import Form
    from modelc.target import Target
    from modelc.verb import Progress

GivenShapes = Mapping[str, Sequence[int]]  # of inputs, by name
Metric = Callable[..., float]  # of outputs and of a sample, and of the float model's outputs, arrays by name
THREADS = range(1, 257)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `compile` and `tune` are both asked for."""

    shapes: GivenShapes | Sequence[GivenShapes] = option(
        (),
        "Fixes an input's shape. A name given again begins another set of shapes, which makes another variant.",
        "NAME=1,3,224,224",
        doc='Shapes of inputs by name, `{"x": (1, 3, 224, 224)}`, or a list of such: each makes a variant, and a run '
        "takes the variant that fits.",
        several=True,
        read=shape_texts,
        yaml="model",
    )
    dims: Mapping[str, int | Sequence[int]] | None = option(
        None,
        "Fixes a free dimension by its name, everywhere. Several numbers: a variant each. Two with dots between: one "
        "package for every size from the one to the other, in steps of S; what follows @ are sizes that matter most.",
        "NAME=N|M...|A..B[:S][@N,...]",
        doc='Numbers for free dimensions by their names, `{"batch": 8}`; each of several numbers makes a variant. A '
        "range leaves the dimension open: `range(1, 513)`, `range(32, 1281, 32)`, or the text of the command line, "
        '`"1..512@16,128"`. Schedules are chosen by their times at the sizes behind @.',
        several=True,
        read=pairs("NAME=16 once for each name, or NAME=16|32 for several variants, whole numbers below 2^31", sizes),
        yaml="model",
    )
    constants: Mapping[str, Given] | None = option(
        None,
        "Makes an input a constant: 16000, true, 1,2,3, or an array in a file.",
        "NAME=VALUE|FILE.npy",
        doc="Inputs that become constants: a number, true or false, a list, an array, the path of a .npy file.",
        several=True,
        read=pairs("NAME=VALUE once for each input", constant, first=True),
        yaml="model",
    )
    inputs: Mapping[str, NDArray[Any]] | None = option(
        None,
        "Compare with ONNX Runtime on these; their shapes hold where neither --shape nor --dim is given.",
        "F.npz",
        Path,
        doc="Arrays by name that the package is verified with; their shapes hold where neither `shapes` nor `dims` are "
        "given. Default: drawn.",
        yaml="model",
    )
    states: Mapping[str, str] | None = option(
        None,
        "The package keeps this input from run to run, from zeros on: after a run it is this output. A * in both names "
        "stands for the same text; what a run makes longer is a cache that grows.",
        "INPUT=OUTPUT",
        several=True,
        read=pairs("INPUT=OUTPUT once for each input", str, first=True),
        yaml="model",
    )
    bounds: Mapping[str, int] | None = option(
        None,
        "The largest size that this value of the model may give where data decides it; a larger one ends a run with an "
        "error.",
        "NAME=N",
        several=True,
        read=pairs("NAME=N once for each value, a whole number from 1", bound),
        yaml="model",
    )
    config: str | Path | Config | None = option(
        None, "Stages and their parameters (default: default).", "NAME|FILE.yaml", yaml="model"
    )
    precision: str | None = option(
        None,
        "What contractions multiply; f16: short sums too, where the target computes in float16; int8: by the samples "
        "of --calibrate, or without any by row; auto: bf16 but where f32 is needed, and int8 where --calibrate is "
        "given (default: the configuration's, f32).",
        doc="What contractions multiply: f32, bf16, f16, auto (bf16 where it pays and is near enough), or int8: as "
        "`calibrate` or `choices` decide in detail, or without them with activations rounded by row in each run. "
        "Default: as `config` says.",
        kind=("f32", "bf16", "f16", "int8", "auto"),
    )
    database: str | Path | bool = option(
        True,
        "Of measurements (default: the user's own).",
        "FILE",
        Path,
        doc="Of each kernel the schedule is taken that this database has measured to be the fastest for just this "
        "target and version of modelc. True: the user's own; False: none.",
        off="Neither read nor write measurements.",
    )
    cache: bool = option(
        True,
        "Neither read nor write what was worked out before (modelc cache).",
        doc="Whether prices, schedules and machine code are kept in the user's cache, and taken from there.",
    )
    progress: Progress | None = option(
        None, doc="Is told each stage and what it is at, `progress(stage, text)`; an exception from it ends the call."
    )

    @property
    def fixed(self) -> Inputs:
        """What is said of the model's inputs. Raises InputError."""
        return Inputs(
            shape_sets(self.shapes),
            dim_sizes(self.dims or {}),
            self.constants or {},
            self.states or {},
            self.bounds or {},
        )

    def settings(self, otherwise: Config | None = None) -> Config:
        """The configuration, in the precision that is asked for: `otherwise`, or the default, where none is named.
        Raises ConfigError."""
        from modelc.compile.config import Config, check_precision, load_config

        config = self.config if self.config is not None else otherwise if otherwise is not None else "default"
        named = config if isinstance(config, Config) else load_config(config)
        if self.precision is None:
            return named
        if self.precision == "int8":  # but for what a Recipe has in float16
            return named.allowing(precision="f32")
        return named.allowing(precision=check_precision(self.precision, "precision"))

    @property
    def store(self) -> Store:
        """What was worked out before, by whom `cache` says: any process of this user, or this one alone."""
        return user_store() if self.cache else Store(None)

    def say(self, stage: str, text: str) -> None:
        if self.progress is not None:
            self.progress(stage, text)


@dataclass(frozen=True)
class CompileRequest(Request):
    """What modelc.compile is asked for."""

    model: ModelSource = argument("A path, the bytes of an ONNX file, or an onnx.ModelProto.")
    target: str | Path | Target | None = option(
        None,
        "The machine to compile for (default: native, this one); $MODELC_TARGET says another default.",
        "NAME|FILE.yaml",
        doc="What it is compiled for: a name of modelc.targets.names(), a .yaml file, or a Target. Default: this "
        "machine.",
        envvar="MODELC_TARGET",
    )
    output: str | Path | None = option(
        None,
        "Default: MODEL.modelc here, MODEL.TARGET.modelc with --target.",
        "OUT.modelc",
        Path,
        doc="Where the package goes. Default: MODEL.modelc in the working folder, MODEL.TARGET.modelc where a target "
        "is named; MODEL is `model` where the model is no file.",
        flag="-o",
    )
    _: KW_ONLY
    threads: int | None = option(None, "Kernels compiled at a time.", "N", THREADS)
    verify: bool = option(
        True,
        "Do not compare with ONNX Runtime.",
        doc="Whether kernels are judged and the package is compared with ONNX Runtime.",
    )
    keep_unverified: bool = option(False, "Leave the package even if verification fails.")
    stop_after: str | None = option(
        None,
        "Go no further than this stage, and write no package before it.",
        "STAGE",
        doc="The last stage: import, simplify, partition, schedule, codegen, package or verify.",
    )
    dump_dir: str | Path | None = option(None, "Write the IR's text there.", "DIR", Path)
    choices: str | Path | None = option(
        None,
        "Take what an earlier choices.json says.",
        "FILE",
        Path,
        doc="The choices.json of an earlier package, or its folder. Target, shapes, constants and configuration are "
        "as it says where nothing else is given, and the package is the same byte for byte. Of another model's, and "
        "for other shapes, the schedules of the kernels that occur are taken.",
        yaml="model",
    )
    run_threads: int = option(
        1,
        "Take measurements of kernels on so many threads (tune's --threads).",
        "N",
        THREADS,
        doc="The threads on which kernels of `database`, and of the records of the target's family, were measured.",
    )
    prefix: str | None = option(
        None, "Begins the names of the library (default: the model's name).", "NAME", yaml="form"
    )
    emit: str | Sequence[str] = option(
        (),
        "Shared library (default), static one, object, Rust crate.",
        "so,a,o,rust",
        doc="What the code is in: so, a, o, rust, one or several. Default: so, or what the target's system loads.",
        read=listed,
        yaml="form",
    )
    embed_params: bool = option(False, "Put parameters into the library: no file is opened.", yaml="form")
    freestanding: bool = option(False, "Need no C library, threads or files; memory is the caller's.", yaml="form")
    libc: str = option("", "gnu, gnu.2.N, musl or none (default: the oldest gnu).", "LIBC", yaml="form")
    cc: str = option("", "The C compiler for the target (default: $CC, or what is there).", "COMMAND")
    ar: str = option("", "What makes static libraries.", "COMMAND")
    max_params: str = option(
        "",
        "The most that parameters may take.",
        "1.2x|4MB",
        doc='The most that parameters may take, "4MB", or "1.2x", times those of the model.',
        yaml="limits",
    )
    params: str | None = option(
        None,
        "Store sums of weights (Winograd, Strassen), or make them of the weights when the package is opened (default: "
        "the configuration's, which makes those that would be too large).",
        doc="Whether sums of weights (Winograd, Strassen) are stored, or made of the weights when the package is "
        "opened. Default: as `config` says, which is opened where parameters would be more than 1.2 times the model's "
        "file.",
        kind=("stored", "opened"),
        yaml="form",
    )
    max_arena: str = option("", "The most that the arena may take.", "BYTES", yaml="limits")
    max_library: str = option("", "The most that the file with the code may take.", "BYTES", yaml="limits")
    recipe: Recipe | Packing | None = option(None, doc="How a model is quantized, as an earlier calibration found.")
    emit_onnx: str | Path | None = option(
        None, "Also write the quantized model, for other engines: layers in float16 are float32 in it.", "Q.onnx", Path
    )
    weights: str | None = option(
        None,
        "Store the weights of MatMul and Gemm, and tables that Gather reads, in 8 bits by column and row (int8), or in "
        "4 by block, and multiply them by activations in int8 by block (int4), or in float32 (int4-float).",
        doc="int8, int4 or int4-float: the weights of matrix products, and the tables of lookups, have 8 or 4 bits; "
        "with int4 weights are multiplied by activations in int8 by block, else in float32.",
        kind=("int8", "int4", "int4-float"),
        yaml="model",
    )
    block: int | None = option(
        None,
        "How many weights of 4 bits have one scale, for --weights (default: 32).",
        "N",
        ("16", "32", "64", "128", "256"),
        doc="How many weights of 4 bits have one scale. Default: 32.",
        read=int,
        yaml="model",
    )
    calibrate: str | Path | None = option(
        None,
        "Samples by which the model is quantized: arrays with a leading axis of samples, or a file for each. For "
        "--precision int8 or auto, and --weights.",
        "DATA.npz|FOLDER",
        Path,
        yaml="model",
    )
    metric: str | Metric | None = option(
        None,
        "What the drop is measured by: a function of the outputs and of the sample, arrays by name, more for better; "
        "with three arguments also of the float model's outputs (default: by what outputs look like: classes, boxes or "
        "neighbours that agree, cosine, relative error). The file is executed.",
        "FILE.py:FUNCTION",
        doc="A score of a model's outputs, `metric(outputs, sample)`: larger is better. Both arguments map names to "
        "arrays; the sample has the labels of the data, too. A third argument gets the float model's outputs. Or "
        "FILE.py:FUNCTION; the file is executed. Default, by the kind of output: agreement of classes, boxes or "
        "nearest neighbours, the cosine, or the relative error.",
        yaml="model",
    )
    max_drop: float | None = option(
        None,
        "How much worse than the float model outputs may be on samples that are held back: 1% (the default), 0.005.",
        "SHARE",
        doc="How much worse than the float model outputs may be on samples that are held back, as a share from 0 to 1. "
        "Default: 0.01.",
        read=share,
    )

    trade_off: bool = option(
        False,
        "Write no package: print what fewer layers in bytes take and lose on the samples of --calibrate, each row with "
        "the --max-drop that chooses it.",
        doc="Makes no package, but a table, `trade_off` of the result: what fewer layers in bytes take and lose on the "
        "samples of `calibrate`, each row with the `max_drop` that chooses it.",
    )

    def __post_init__(self) -> None:
        if self.stop_after is not None and self.stop_after not in STAGES:
            raise ConfigError(f"there is no stage {self.stop_after!r}; the stages are {', '.join(STAGES)}")
        if self.choices is not None and not isinstance(self.database, bool):
            raise ConfigError(f"{self.choices} says what is taken: give either choices or a database")
        for name in ("metric", "max_drop") if self.calibrate is None else ():
            if (given := getattr(self, name)) is not None:
                raise ConfigError(f"{name} is {given!r}, which judges a calibration: give calibrate too, its samples")
        if self.trade_off and (self.calibrate is None or self.max_drop is not None):
            said = "with max_drop, which chooses" if self.calibrate is not None else "without calibrate, its samples"
            raise ConfigError(f"trade_off shows what max_drop can choose by samples, and was given {said}")
        if self.max_drop is not None and not 0 <= self.max_drop <= 1:
            raise ConfigError(f"the greatest drop is {self.max_drop}; expected a share from 0 to 1, such as 1% or 0.01")

    @property
    def quantizes(self) -> bool:
        """Whether it is to be decided what is in few bits: by samples, or where int8 or weights are said without."""
        if self.calibrate is not None or self.weights is not None:
            return True
        return self.precision == "int8" and self.choices is None and self.recipe is None

    def settings(self, otherwise: Config | None = None) -> Config:
        """The same, with constants as is asked for."""
        config = super().settings(otherwise)
        return config if self.params is None else replace(config, params=self.params)

    def form(self, triple: str) -> Form:
        """What the package for a triple is made as. Raises PackageError for what makes no sense."""
        from modelc.package.form import Form

        asked = (self.prefix, several(self.emit), self.embed_params, self.freestanding, self.libc, self.cc, self.ar)
        form = Form.of(self.path.stem, *asked, triple)
        if form.freestanding and self.params == "opened":
            raise ConfigError(
                "a free-standing package is not opened, so that no sums of weights are made then: leave out "
                "--params opened"
            )
        return form

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


def shape_sets(given: GivenShapes | Sequence[GivenShapes]) -> tuple[Shapes, ...]:
    """Sets of shapes, a variant each: what was given is one, or several. Raises InputError."""
    several = (given,) if isinstance(given, Mapping) else given
    try:
        return tuple({name: tuple(map(index, shape)) for name, shape in one.items()} for one in several)
    except (TypeError, AttributeError):
        raise InputError(
            f"shapes is {str(given)[:200]}; expected whole numbers by input, such as {{'x': (1, 3, 224, 224)}}, or a "
            "list of such, each of which makes a variant"
        ) from None


def _numbers(given: int | Sequence[int] | str) -> Sequence[int]:
    if isinstance(given, range):
        return Open(given)
    if isinstance(given, Open):
        return given
    if isinstance(given, str):  # as modelc.yaml has it
        numbers = sizes(given) if is_range(given) else None
        if numbers is None:
            raise TypeError
        return numbers
    return (index(given),) if hasattr(given, "__index__") else tuple(map(index, given))


def dim_sizes(given: Mapping[str, int | Sequence[int]]) -> dict[str, Sequence[int]]:
    """Numbers for free dimensions by name; a range is of what one package takes. Raises InputError."""
    try:
        return {name: _numbers(n) for name, n in given.items()}
    except (TypeError, AttributeError):
        raise InputError(
            f"dims is {str(given)[:200]}; expected a whole number for each dimension, such as {{'batch': 8}}, or "
            "several, each of which makes a variant"
        ) from None


def named_target(target: str | Path | Target | None) -> Target | None:
    """The target of that name or file, if one is given. Raises TargetError."""
    from modelc.compile.pass_lists import loaded

    return loaded(target) if isinstance(target, str | Path) else target


def keys_of_yaml(section: str) -> dict[str, str]:
    """The keys that a section of a model of modelc.yaml has, each with the field of a CompileRequest that it fills."""
    rows = [row for row in fields(CompileRequest) if row.metadata["option"].yaml == section]
    return {row.name.removeprefix("max_" * (section == "limits")).replace("_", "-"): row.name for row in rows}
