"""One compilation: what it is asked for, and its first stages: import, simplify, partition (DESIGN section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.cache.store import Store, user_store
from modelc.compile.byte_prices import Reasons, slower_in_bytes
from modelc.compile.choices import Choices, Shapes
from modelc.compile.config import Config
from modelc.compile.inputs import check_elements, check_states, fitting
from modelc.compile.limits import Limits
from modelc.compile.opened import Open
from modelc.compile.pass_lists import simplifying
from modelc.compile.precision import constant_bytes
from modelc.compile.programs import Partitioning, Programs
from modelc.compile.stages import Stages
from modelc.database.recorded import Recorded
from modelc.errors import ConfigError
from modelc.forks import cores
from modelc.frontend.load.beside import bytes_with_files_beside
from modelc.frontend.onnx import import_model
from modelc.frontend.quantize.packing import Packing
from modelc.frontend.quantize.recipe import Recipe
from modelc.ir.candidate import Candidate
from modelc.ir.graph import Graph
from modelc.ir.graph_text import show_graph
from modelc.ops.found import checks_sizes
from modelc.package import Form
from modelc.package.spec import FreeSize
from modelc.partition.draft import Prepared, prepared
from modelc.passes import Machine, run_passes
from modelc.space.choose import Schedules
from modelc.space.constants import GROWTH, Room
from modelc.target import Target

MOST_THREADS = 4
SHOWN_ELEMENTS = 16  # constants of more elements are dumped by their hash


def default_threads() -> int:
    """CPUs that this process may run on, but not more than kernels keep busy."""
    return min(cores(), MOST_THREADS)


@dataclass(frozen=True)
class Imported:
    """A model as Graphs, one for each set of shapes: as they were imported, and simplified. `inputs`: the
    data to verify with that is no constant; `real`: what is quantized and multiplied in float32, and why."""

    originals: tuple[Graph, ...]
    graphs: tuple[Graph, ...]
    inputs: Mapping[str, NDArray[Any]] | None
    real: Reasons


@dataclass
class Compilation:
    """What a compilation is asked for, and what its first stages make of the model, each once."""

    model: Path
    digest: str
    target: Target
    config: Config
    shapes: tuple[Shapes, ...]
    threads: int = field(default_factory=default_threads)
    locked: Choices | None = None  # of this very model and these shapes: layouts and precision are theirs
    tasks: Mapping[str, Candidate] = field(default_factory=dict)  # that were chosen before, by the Task's hash
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # inputs of the model that are fixed
    inputs: Mapping[str, NDArray[Any]] | None = None  # to verify with
    stages: Stages = field(default_factory=Stages)
    recorded: Recorded | None = None  # what a database says of Tasks that were not chosen before
    run_threads: int = 1  # on which kernels were measured, of what records say
    notes: tuple[str, ...] = ()  # what became of the user's configuration and database on the way
    form: Form = field(default_factory=Form)  # what the package is made as
    limits: Limits = field(default_factory=Limits)  # of sizes
    weighing: bool = True  # whether what a model quantizes is multiplied in bytes by its price
    store: Store = field(default_factory=user_store)  # of what was worked out before
    recipe: Recipe | Packing | None = None  # by which `model` was quantized; `digest` is of the float model then
    float_model: Path | None = None  # which is this
    alike: bool = False  # the shapes are those of one package for any size
    free: tuple[FreeSize, ...] = ()  # sizes that the package leaves open

    @property
    def opened(self) -> Mapping[str, Open]:
        """The dimensions of the inputs that the package leaves open."""
        return {}

    @property
    def growing(self) -> Mapping[str, str]:
        """The states that are caches which grow, and the dimension that is their length."""
        return {}

    def with_caches(self, graphs: list[Graph]) -> list[Graph]:
        """The simplified graphs with the places of caches that grow."""
        return graphs

    @cached_property
    def imported(self) -> Imported:
        """import, simplify."""
        with self.stages.stage("import", str(self.model)) as dump:
            states, bounds = self.config.inputs.states, self.config.inputs.bounds
            originals = self.originals(bounds)
            if not self.config.check_addresses and any(map(checks_sizes, originals)):
                raise ConfigError(
                    "the model computes sizes from data, which a run has to check: check_addresses is false"
                )
            check_states(originals, states, self.growing)
            for graph in originals:
                check_elements(self.model, graph)
            inputs = self.inputs
            if inputs is not None:
                inputs = fitting(inputs, originals, self.constants, states, self.model)
            for graph in originals if self.stages.dumping else ():
                dump(show_graph(graph, SHOWN_ELEMENTS))
        with self.stages.stage("simplify", f"{sum(len(g.nodes) for g in originals)} nodes") as dump:
            real = self._real(originals[0])
            graphs = self.with_caches([self._simplified(graph, real) for graph in originals])
            for graph in graphs if self.stages.dumping else ():
                dump(show_graph(graph, SHOWN_ELEMENTS))
        return Imported(tuple(originals), tuple(graphs), inputs, real)

    def originals(self, bounds: Mapping[str, int]) -> Sequence[Graph]:
        """The model as it is imported at each set of shapes."""
        return [import_model(self.model, shapes, self.constants, bounds) for shapes in self.shapes]

    def _simplified(self, graph: Graph, real: Reasons) -> Graph:
        """`graph` after the passes, where the contractions `real` are multiplied in float32."""
        machine = replace(Machine.of(self.target, self.config.policy.tensorize), real=real)
        return run_passes(graph, simplifying(self.config, self.target).passes, machine, self._on_pass)

    def _real(self, original: Graph) -> Reasons:
        """The quantized contractions of a model that are multiplied in float32 by their price."""
        if self.locked is not None:
            return self.locked.real
        if self.recipe is not None or not self.weighing:
            return {}
        simplified, allowed = partial(self._simplified, original), self._widened_within
        on = partial(self.schedules_on, stage="simplify")
        return slower_in_bytes(original, simplified, self.target, self.config, allowed, on)

    def _widened_within(self, constants: int) -> int | None:
        """The bytes that parameters may have with weights in float32 that the model gives in bytes, of so many: where
        opening does not make them of bytes, half of what they may grow by default."""
        limit = self.limits.params_bytes(constants)
        if limit is None and self.room(constants).opened is False:
            return constants + int((GROWTH - 1) / 2 * self.file_bytes)
        return limit

    @cached_property
    def drafts(self) -> tuple[Prepared, ...]:
        """The simplified Graphs in Blocks."""
        return tuple(prepared(graph) for graph in self.imported.graphs)

    def programs(self) -> Programs:
        """import, simplify, partition."""
        with self.stages.stage("partition", f"{sum(len(g.nodes) for g in self.imported.graphs)} nodes") as dump:
            programs = self.partitioning.programs()
            for program in programs.rounded if self.stages.dumping else ():
                dump(str(program))
        return programs

    @property
    def partitioning(self) -> Partitioning:
        """What the graphs are cut into Programs by."""
        halves = self.recipe.halves if isinstance(self.recipe, Recipe) else frozenset()
        return Partitioning(self.drafts, self.target, self.config, self.schedules, self.locked, halves, self.alike)

    @cached_property
    def schedules(self) -> Schedules:
        """What Tasks are scheduled by."""
        return self.schedules_on(self.estimating)

    def schedules_on(self, target: Target, stage: str = "partition") -> Schedules:
        """What Tasks would be scheduled by on another target, in a stage that is told how far it is."""
        say = partial(self.stages.progress, stage)
        return Schedules(target, self.config.policy, self.threads, self.store, say)

    @cached_property
    def cold_bytes(self) -> int:
        """Of the constants of the largest of the graphs."""
        return max(constant_bytes(g, self.config.policy.precision, self.target) for g in self.imported.graphs)

    @cached_property
    def file_bytes(self) -> int:
        """Of the model that is compiled, and the files beside it."""
        return bytes_with_files_beside(self.model)

    def room(self, constants: int) -> Room:
        """How large parameters may be, of a model with constants of so many bytes."""
        opened = {"stored": False, "opened": True, "auto": None}[self.config.params]
        return Room(self.file_bytes, self.limits.params_bytes(constants), False if self.form.freestanding else opened)

    @property
    def estimating(self) -> Target:
        """The target, with what estimates have to know of the network."""
        return replace(self.target, cold_bytes=self.cold_bytes)

    def _on_pass(self, name: str, graph: Graph) -> None:
        self.stages.progress("simplify", f"{name}: {len(graph.nodes)} nodes")
