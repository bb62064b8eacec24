"""Inputs and outputs of a model that look like a state: what a run leaves for the next. Names alone say so, as
exporters give them: past_key_values.0.key and present.0.key, h0 and hn, state and stateN, r1i and r1o, cache_in and
cache_out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from shlex import quote

import onnx

from modelc.errors import ModelError
from modelc.frontend.load.read import ELEMENT_TYPES
from modelc.frontend.steering.specialise import free_inputs

BEFORE = frozenset(("past", "prev", "previous", "old", "last", "init", "initial", "cached", "in", "input"))
AFTER = frozenset(("present", "next", "new", "updated", "cur", "current", "cached", "n", "out", "output"))
WEAK = frozenset(("in", "input", "out", "output"))  # which say it of a state alone
STATES = frozenset(("state", "states", "cache", "caches", "hidden", "cell", "mem", "memory", "key", "value", "h", "c"))
ENDS = (("0", "n"), ("i", "o"), ("0", "1"))  # h0 and hn, r1i and r1o, h_0 and h_1
MANY = "*"
OPTIMUM = r"past_key_values\.(\d+(?:\.\w+)?\.(?:key|value))=present\.\1"
BRANCH = "use_cache_branch"  # an input of optimum's merged decoders: whether there is a cache
_KEPT = re.compile(r"^(past|present)[._]?(key[._]?values?|kv)s?(?=[._])", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
Dims = tuple[int | str, ...]


@dataclass(frozen=True)
class StateCandidate:
    """An input and the output that it may be after a run. `grows` where their declared shapes differ: then it is no
    state as it is."""

    input: str
    output: str
    dtype: str
    before: Dims | None
    after: Dims | None

    @property
    def grows(self) -> bool:
        if self.before is None or self.after is None:
            return False
        return len(self.before) != len(self.after) or any(map(_differ, self.before, self.after))

    @property
    def appends(self) -> bool:
        """Whether it grows along one dimension, which the input leaves open: a cache."""
        if not self.grows or self.before is None or self.after is None or len(self.before) != len(self.after):
            return False
        longer = [dim for dim, other in zip(self.before, self.after, strict=True) if _differ(dim, other)]
        return len(longer) == 1 and isinstance(longer[0], str)

    @property
    def flag(self) -> str:
        return f"--state {quote(f'{self.input}={self.output}')}"


def states_by_name(graph: onnx.GraphProto, states: Mapping[str, str]) -> dict[str, str]:
    """The states, where INPUT=OUTPUT with a * in both is one of each input that it matches. Raises ModelError."""
    inputs, named = free_inputs(graph), dict[str, str]()
    for given, output in states.items():
        if MANY not in given or given in inputs:
            named[given] = output
            continue
        pattern = re.compile("(.*)".join(map(re.escape, given.split(MANY))))
        matches = [match for name in inputs if (match := pattern.fullmatch(name))]
        first, *others = output.split(MANY)
        if not matches or given.count(MANY) != len(others):
            raise ModelError(
                f"--state {given}={output}: expected as many {MANY} in both, and inputs that the first matches; the "
                f"model's inputs are {', '.join(map(repr, inputs))}"
            )
        for match in matches:
            named[match[0]] = first + "".join(part + more for part, more in zip(match.groups(), others, strict=True))
    return named


def growing_dims(graph: onnx.GraphProto, states: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Of states of which a run gives back more than it was handed, by the shapes that the model declares: the
    dimensions along which they grow, and their other free ones."""
    inputs, outputs = free_inputs(graph), {o.name: o for o in graph.output}
    growing, others = set[str](), set[str]()
    for past, present in states.items():
        if past not in inputs or present not in outputs:
            continue
        before, after = _dims(inputs[past]), _dims(outputs[present])
        if before is None or after is None or len(before) != len(after):
            continue
        longer = {dim for dim, other in zip(before, after, strict=True) if _differ(dim, other) and isinstance(dim, str)}
        growing |= longer
        others |= {dim for dim in before if longer and isinstance(dim, str) and dim} - longer
    return growing, others


@dataclass(frozen=True)
class Caches:
    """The caches of a model that grow: the exporter whose `convention` they follow, "" where it is none that is known,
    and the `flags` that make them states."""

    convention: str
    flags: tuple[str, ...]


def caches_of(graph: onnx.GraphProto, candidates: Iterable[StateCandidate]) -> Caches | None:
    """The caches among the candidates, by what exporters call them: optimum's past_key_values.N.key and present.N.key,
    a decoder for the first token and for others merged by an If; genai's, which GroupQueryAttention reads."""
    caches = [one for one in candidates if one.appends]
    if not caches:
        return None
    grouped = {x for node in graph.node if node.op_type == "GroupQueryAttention" for x in node.input}
    inputs = free_inputs(graph)
    by_names = all(re.fullmatch(OPTIMUM, f"{one.input}={one.output}") for one in caches)
    convention = "optimum" if by_names else ""
    convention = "genai" if all(one.input in grouped for one in caches) else convention
    conditions = {node.input[0] for node in graph.node if node.op_type == "If"}
    merged = [f"--constant {BRANCH}=true"] if BRANCH in inputs and BRANCH in conditions else []
    return Caches(convention, (*flags_of(caches, inputs), *merged))


def flags_of(candidates: Iterable[StateCandidate], inputs: Iterable[str]) -> list[str]:
    """The flags that make candidates states, one for all of a pattern: `past_key_values.*=present.*`."""
    candidates, inputs, flags = [*candidates], [*inputs], list[str]()
    pairs = {one.input: one.output for one in candidates}
    for one in candidates:
        pattern = _pattern(one)
        begin = pattern[0].removesuffix(MANY)
        alike = {name for name in inputs if name.startswith(begin)}
        fits = all(name in pairs and _pattern_of(name, pairs[name]) == pattern for name in alike)
        text = "=".join(pattern) if fits and len(alike) > 1 else f"{one.input}={one.output}"
        flags.append(f"--state {quote(text)}")
    return list(dict.fromkeys(flags))


def _pattern(one: StateCandidate) -> tuple[str, str]:
    return _pattern_of(one.input, one.output)


def _pattern_of(before: str, after: str) -> tuple[str, str]:
    """Two names with a * for what they end with alike, from a separator on."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(before), reversed(after), strict=False))
    end = "".join(one for one, _ in alike)[::-1]
    separator = re.search(r"[._/]", end)
    if separator is None:
        return before, after
    rest = len(end) - separator.end()
    return before[: len(before) - rest] + MANY, after[: len(after) - rest] + MANY


def _differ(first: int | str, second: int | str) -> bool:
    """Dimensions that cannot be the same; of one without a name nothing is known."""
    return first != second and "" not in (first, second) and not (isinstance(first, int) ^ isinstance(second, int))


def state_candidates(graph: onnx.GraphProto) -> tuple[StateCandidate, ...]:
    """In the order of the inputs. What several inputs or outputs could be is none."""
    inputs, outputs = free_inputs(graph), {o.name: o for o in graph.output}
    named = _pairs(inputs, outputs, _without(BEFORE), _without(AFTER))
    pairs = {before: after for before, after in named.items() if _said(before, after)}
    for first, second in ENDS:
        unpaired = ([n for n in inputs if n not in pairs], [n for n in outputs if n not in pairs.values()])
        pairs |= _pairs(*unpaired, _ending(first), _ending(second))
    candidates = []
    for name in inputs:
        if name not in pairs:
            continue
        before, after = inputs[name], outputs[pairs[name]]
        kinds = [ELEMENT_TYPES.get(info.type.tensor_type.elem_type, "unknown") for info in (before, after)]
        if kinds[0] == kinds[1]:
            candidates.append(StateCandidate(name, after.name, kinds[0], _dims(before), _dims(after)))
    return tuple(candidates)


def _pairs(inputs: Iterable[str], outputs: Iterable[str], *keys: object) -> dict[str, str]:
    """Inputs and outputs of the same key, where each is the only one of it."""
    sides: list[Mapping[object, str]] = []
    for names, key in zip((inputs, outputs), keys, strict=True):
        assert callable(key)
        of: dict[object, list[str]] = {}
        for name in names:
            if (key_of_name := key(name)) is not None:
                of.setdefault(key_of_name, []).append(name)
        sides.append({k: those[0] for k, those in of.items() if len(those) == 1})
    return {name: sides[1][key] for key, name in sides[0].items() if key in sides[1]}


def _said(before: str, after: str) -> bool:
    """Whether the names say more than input and output."""
    words = {*_words(before), *_words(after)}
    return bool(words & STATES or words & (BEFORE | AFTER) - WEAK)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _without(marks: frozenset[str]) -> object:
    """A name in words, without those that say before or after."""

    def key(name: str) -> tuple[str, ...] | None:
        return tuple(word for word in _words(_KEPT.sub("", name)) if word not in marks) or None

    return key


def _ending(end: str) -> object:
    def key(name: str) -> str | None:
        base = name.removesuffix(end) if name.endswith(end) else name.removesuffix(end.upper())
        return base.rstrip("_.") if base not in ("", name) else None

    return key


def _dims(info: onnx.ValueInfoProto) -> Dims | None:
    kind = info.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim)
