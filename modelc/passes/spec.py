"""A pass as a configuration or a target's YAML names it, `name` or `name: {option: value}`, made from its table. A pass
is a frozen dataclass whose fields are its options: whole numbers, or words where a field's metadata says which."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any

from modelc.errors import ConfigError
from modelc.target.passes import Spec, is_spec
from modelc.target.section import WORD, shown

MOST = (1 << 31) - 1  # of an option that is a whole number


def word(default: Any = MISSING, among: Sequence[str] = ()) -> Any:
    """An option that is a word, one of `among` if these are given."""
    return field(default=default, metadata={"among": tuple(among)})


def made_of(spec: Spec, table: Mapping[str, type], place: str = "", **facts: Any) -> tuple[str, Any]:
    """The name of the pass that `spec` says, and the pass of `table` with its options and those `facts` (of the target)
    that are fields of it. Raises ConfigError, which begins with `place`."""
    at = f"{place}: " if place else ""
    if not is_spec(spec):
        raise ConfigError(f"{at}{shown(spec)} is no pass; expected its name, or `name: {{option: value}}`")
    name, options = (spec, {}) if isinstance(spec, str) else next(iter(spec.items()))
    if name not in table:
        close = difflib.get_close_matches(name, table, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"{at}unknown pass {name[:80]!r}; the passes are {', '.join(table)}{hint}")
    options, kind = {} if options is None else options, table[name]
    if not isinstance(options, Mapping):
        raise ConfigError(f"{at}pass {name}: its options are {shown(options)}; expected a mapping, `{{option: value}}`")
    options_of = {f.name: f for f in fields(kind) if f.name not in facts}
    for option, value in options.items():
        if option not in options_of:
            has = f"it has {', '.join(options_of)}" if options_of else "it has none"
            raise ConfigError(f"{at}pass {name} has no option {str(option)[:80]}; {has}")
        if wrong := _wrong(options_of[option], value):
            raise ConfigError(f"{at}pass {name}: option {option} is {shown(value)}; expected {wrong}")
    missing = [f.name for f in options_of.values() if f.name not in options and f.default is MISSING]
    if missing:
        raise ConfigError(f"{at}pass {name} needs the option {missing[0]}: write `{name}: {{{missing[0]}: ...}}`")
    names = {f.name for f in fields(kind)}
    try:
        return name, kind(**options, **{fact: value for fact, value in facts.items() if fact in names})
    except ConfigError as wrong:
        raise ConfigError(f"{at}pass {name}: {wrong}") from None


def _wrong(option: Field[Any], value: Any) -> str:
    """What an option takes, where that is not `value`."""
    if "among" not in option.metadata:
        is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
        return "" if is_number else f"a whole number from 0 to {MOST}"
    among = option.metadata["among"]
    if among:
        return "" if value in among else f"one of {', '.join(among)}"
    return "" if isinstance(value, str) and WORD.fullmatch(value) else "a name"
