"""A model as Programs: its graphs are cut into Tasks, with values stored as costs least in the schedules that these
Tasks will get, and with contractions in the precision that is asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from modelc.compile.choices import Choices, blaming_choices
from modelc.compile.config import Config
from modelc.compile.pass_lists import scheduling
from modelc.compile.precision import Kept, rounded
from modelc.ir.program import Program
from modelc.layout.chains import chains_by_price
from modelc.layout.choice import LayoutPolicy
from modelc.layout.convert import LayoutChoice
from modelc.layout.program import Like, check_storage, choose_layouts, partition
from modelc.partition.chains import chained
from modelc.partition.draft import Prepared
from modelc.partition.narrow_products import narrowing
from modelc.partition.precision import Narrowing, contracting_tasks, writing_tasks
from modelc.space.choose import Schedules
from modelc.target import Target


@dataclass(frozen=True)
class Programs:
    """One way to cut a model into Tasks: `wide`, a Program for each set of shapes, as the model says it; `rounded`, the
    same in the precision that is asked for, where the Tasks called `kept` stay in float32. Both store values as
    `layouts` say."""

    wide: tuple[Program, ...]
    rounded: tuple[Program, ...]
    layouts: tuple[LayoutChoice, ...]
    kept: Kept

    @cached_property
    def parameter_bytes(self) -> int:
        """Of the constants of the largest Program."""
        return parameter_bytes(self.rounded)

    @property
    def kept_values(self) -> tuple[frozenset[str], ...]:
        """What the Tasks that stay in float32 write, for each set of shapes: layouts change how a Task is called, and
        not what it writes."""
        return tuple(
            frozenset(x for bound in program.tasks if bound.task.name in names for x in bound.outputs)
            for program, names in zip(self.wide, self.kept, strict=True)
        )

    def only(self, program: Program) -> Programs:
        """What a package of `program` alone is made of."""
        return replace(self, rounded=(program,))


@dataclass(frozen=True)
class Partitioning:
    """What the graphs of a model, one for each set of shapes, are cut into Programs by. `schedules` are under the
    policy of `config`; `locked` choices say layouts and precision. Of what can be in
    float16 the nodes `halves` alone are, if there are any. `alike`: all are cut and stored as the first is."""

    graphs: tuple[Prepared, ...]
    target: Target
    config: Config
    schedules: Schedules
    locked: Choices | None = None
    halves: frozenset[str] = frozenset()
    alike: bool = False

    def programs(self) -> Programs:
        """In the layouts and precision that are locked; else in the layouts that cost least, nothing in float32 that
        need not be."""
        if self.locked is not None:
            layouts = tuple(replace(choice, chained=choice.chained or ()) for choice in self.locked.layouts)
            return self.stored(layouts, self.locked.float32)
        if self.halves:
            by_rule = tuple(partition(graph, self.attention_bytes) for graph in self.graphs)
            layouts = self.chosen_layouts(Programs(by_rule, (), (), self._others(by_rule, self.halves)).kept_values)
            wide = self.cut(layouts)
            return self.in_precision(wide, layouts, self._others(wide, self.halves))
        nothing: Kept = ((),) * len(self.graphs)
        return self.stored(self.chosen_layouts(nothing), nothing)

    def _others(self, programs: Sequence[Program], nodes: frozenset[str]) -> Kept:
        """The Tasks that could be in the precision that is asked for, and compute none of `nodes`."""
        dtype = narrowing(self.config.policy.precision, self.target)
        others = list[tuple[str, ...]]()
        for program in programs:
            computing = {bound.task.name for bound in program.tasks if not nodes.isdisjoint(bound.task.nodes)}
            others.append(tuple(name for name in contracting_tasks(program, dtype) if name not in computing))
        return tuple(others)

    def keeping(self, programs: Programs, kept: Kept) -> Programs:
        """Where the Tasks `kept` of `programs` stay in float32, in layouts chosen for that: Tasks may be called
        otherwise there."""
        values = replace(programs, kept=kept).kept_values
        return self.narrowed(self.chosen_layouts(values), values)

    def relaid(self, programs: Programs, layouts: tuple[LayoutChoice, ...]) -> Programs:
        """`programs` with values stored as `layouts` say; what stays in float32 does."""
        return self.narrowed(tuple(replace(choice, chained=None) for choice in layouts), programs.kept_values)

    def narrowed(self, layouts: tuple[LayoutChoice, ...], kept_values: Sequence[Collection[str]]) -> Programs:
        """With values stored as `layouts` say, where the Tasks that write `kept_values` stay in float32."""
        wide = self.cut(layouts)
        dtype = narrowing(self.config.policy.precision, self.target) or "bfloat16"
        kept = tuple(writing_tasks(program, values, dtype) for program, values in zip(wide, kept_values, strict=True))
        return self.in_precision(wide, layouts, kept)

    def stored(self, layouts: tuple[LayoutChoice, ...], kept: Kept) -> Programs:
        """With values stored as `layouts` say, where the Tasks called `kept` stay in float32."""
        with blaming_choices("layouts and float32", self.locked is not None):
            wide = self.cut(layouts)
        return self.in_precision(wide, layouts, kept)

    def cut(self, layouts: Sequence[LayoutChoice]) -> tuple[Program, ...]:
        """As the model says it, with values stored as `layouts` say."""
        first = partition(self.graphs[0], self.attention_bytes, layouts[0])
        like = Like(self.graphs[0].graph, first) if self.alike else None
        at_other_sizes = zip(self.graphs[1:], layouts[1:], strict=True)
        return (first, *(partition(graph, self.attention_bytes, choice, like) for graph, choice in at_other_sizes))

    def in_precision(self, wide: tuple[Program, ...], layouts: tuple[LayoutChoice, ...], kept: Kept) -> Programs:
        """With the Programs `wide` also in the precision that is asked for."""
        precision, each = self.config.policy.precision, zip(wide, kept, strict=True)
        with blaming_choices("layouts and float32", self.locked is not None):
            programs = tuple(rounded(program, precision, self.target, names) for program, names in each)
            layouts = self.with_chains(programs, layouts)
            between = [choice.chained or () for choice in layouts]
            programs = tuple(chained(program, names) for program, names in zip(programs, between, strict=True))
        for program in programs:
            for one in program.every_program:
                check_storage(one)
        return Programs(wide, programs, layouts, kept)

    def with_chains(self, programs: Sequence[Program], layouts: tuple[LayoutChoice, ...]) -> tuple[LayoutChoice, ...]:
        """`layouts` that say which values of `programs` stay inside chains, by price where they do not say it; none
        where all programs are one for any size, or passes make the schedules."""
        if self.alike or not self.config.policy.chains or scheduling(self.config, self.target).passes:
            return layouts
        each = zip(programs, layouts, strict=True)
        return tuple(
            replace(choice, chained=chains_by_price(program, self.schedules)) if choice.chained is None else choice
            for program, choice in each
        )

    def chosen_layouts(self, kept_values: Sequence[Collection[str]]) -> tuple[LayoutChoice, ...]:
        """How the values of each graph are stored: as costs least in the schedules that its Tasks will get, in the
        precision that is asked for, where the Tasks that write `kept_values` stay in float32."""
        each = [*zip(self.graphs, kept_values, strict=True)]
        if self.alike:
            (graph, values), *_ = each
            return (choose_layouts(graph, self.policy(values), self.attention_bytes),) * len(each)
        return tuple(choose_layouts(graph, self.policy(values), self.attention_bytes) for graph, values in each)

    def policy(self, kept_values: Collection[str], all_splits: bool = False) -> LayoutPolicy:
        """How layouts are chosen; `all_splits`: every class is offered layouts that split a dimension, whatever the
        configuration says."""
        layout, narrow = self.config.layout, narrowing(self.config.policy.precision, self.target)
        return LayoutPolicy(
            self.schedules,
            layout.search,
            layout.propagate,
            self.target.lanes("float32") if layout.blocked or all_splits else 0,
            self.target.cost.layout_doubt_share,
            all_splits,
            Narrowing(narrow, frozenset(kept_values)) if narrow else None,
        )

    @property
    def attention_bytes(self) -> int:
        return attention_bytes(self.target, self.config)


def attention_bytes(target: Target, config: Config) -> int:
    """What attention's rows may take of the second-level cache; 0: attention is not one Task."""
    return target.second.bytes // 2 if config.policy.attention else 0


def parameter_bytes(programs: Sequence[Program]) -> int:
    """Of the constants of the largest of `programs`."""
    return max(sum(a.nbytes for part in p.every_program for a in part.constants.values()) for p in programs)
