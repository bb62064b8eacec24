"""YAML as untrusted files may use it: the core schema of YAML 1.2 alone, each key once, and no more values than a file
of its size would have without aliases. Everything of modelc that reads YAML reads it here.

PyYAML reads YAML 1.1, where `1:30` is a number in base 60 (quadratic to read), `1e9` is a string, `<<` is a merge
(exponential in a few lines), and of equal keys the last one counts. It is read by libyaml where PyYAML has that, which
takes a seventh of the time.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

_MOST_KEYS = 4096
_MOST_VALUES = 50_000  # with each alias written out: a few lines can stand for billions
_MOST_DIGITS = 20  # of a whole number
_PLAIN = {  # what a scalar without quotes is, if it is no text
    "null": re.compile(r"~|null|Null|NULL|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+"),
    "float": re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
}
_RESOLVERS = {None: [(f"tag:yaml.org,2002:{name}", re.compile(f"(?:{p.pattern})$")) for name, p in _PLAIN.items()]}


_Reader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Reader):  # type: ignore[misc]
    yaml_implicit_resolvers: Any = _RESOLVERS

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        if len(node.value) > _MOST_KEYS:  # many keys of one hash would take long
            raise yaml.YAMLError(f"the mapping in line {node.start_mark.line + 1} has more than {_MOST_KEYS} keys")
        for key_node, value_node in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                raise yaml.YAMLError(f"a key in line {line} is no text or number")
            if key in mapping:
                raise yaml.YAMLError(f"the key {str(key)[:60]!r} is there twice, again in line {line}")
            mapping[key] = self.construct_object(value_node, deep=deep)
        return mapping

    def scalar(self, node: Any) -> Any:
        kind, text = node.tag.rpartition(":")[2], self.construct_scalar(node)
        if _PLAIN[kind].fullmatch(text) is None:
            raise yaml.YAMLError(f"{text[:60]!r} in line {node.start_mark.line + 1} is no {kind}")
        if kind == "int":
            if len(text) > _MOST_DIGITS:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"the number in line {line} has more than {_MOST_DIGITS} characters")
            return int(text, 0)
        if kind == "float":
            return float(text.replace(".", "") if text[-1].isalpha() else text)  # .inf, .nan
        return None if kind == "null" else text.lower() == "true"


_Loader.yaml_constructors = {
    tag: made for tag, made in yaml.SafeLoader.yaml_constructors.items() if tag is None or tag[-4:] in (":str", ":seq")
} | {f"tag:yaml.org,2002:{name}": _Loader.scalar for name in _PLAIN}
_Loader.yaml_constructors["tag:yaml.org,2002:map"] = yaml.SafeLoader.construct_yaml_map


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: Any = _RESOLVERS


def load(text: str) -> Any:
    """The tree of one document. Raises yaml.YAMLError, ValueError or RecursionError."""
    loader = _Loader(text)  # a SafeLoader
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _values(node, {}) > _MOST_VALUES:
            raise yaml.YAMLError(f"it has more than {_MOST_VALUES} values, aliases written out")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _values(node: Any, counted: dict[int, int]) -> int:
    """How many values a node has where each alias is written out; `counted` are those of the nodes before, by id."""
    if id(node) not in counted:
        counted[id(node)] = _MOST_VALUES  # of a node that is part of itself
        if isinstance(node, yaml.MappingNode):
            below = [part for pair in node.value for part in pair]
        else:
            below = node.value if isinstance(node, yaml.SequenceNode) else []
        counted[id(node)] = 1 + sum(_values(part, counted) for part in below)
    return counted[id(node)]


def dump(tree: Any) -> str:
    """The text that `load` reads back."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=120)
    return text
