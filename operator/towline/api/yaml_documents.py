"""YAML text to plain documents with their line numbers, by the rules of kubectl and more carefully.

Used by `documents.py`. Refuses what PyYAML would swallow: a key that comes twice, keys that are no strings, tags that
make objects, aliases that multiply. It knows nothing of our kinds.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from towline.errors import Invalid

MAX_VALUES = 100_000
"""Values in one document, counting what an alias repeats: a few lines of aliases can name billions."""

MAX_DEPTH = 64
"""Mappings and lists inside each other; manifests need ten."""

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {_TAG + name for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge")}


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file. `number` counts from 1, empty documents too, as an editor's search for `---` would."""

    source: str
    number: int
    value: Any
    node: yaml.Node

    def line(self, path: Sequence[str | int]) -> int:
        """Line of the value at `path`, or of the nearest thing above it that is there; the first line is 1."""
        node, line = self.node, self.node.start_mark.line
        for step in path:
            found = _child(node, step)
            if found is None:
                break
            (key, node) = found
            line = key.start_mark.line
        return line + 1


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads scalars as kubectl does: no dates, no sexagesimal numbers, no infinities."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - yaml's own declaration


for _name, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)$", "tTfFyYnNoO"),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*|0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+)$", "-+0123456789"),
    ("float", r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("merge", r"^<<$", "<"),
):
    _firsts: list[Any] = ["" if letter == "\0" else letter for letter in _first]
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), _firsts)


def parse(text: str, source: str) -> Iterator[Document]:
    """The documents of `text` that are not empty. Raises Invalid with `source`, line and column at the first fault."""
    number = 0
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            number += 1
            if node is None or node.tag == _TAG + "null":
                continue
            _check(node, source, number)
            yield Document(source, number, loader.construct_document(node), node)
    except yaml.reader.ReaderError as fault:
        before = text[: fault.position]
        place = f"{source}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        raise Invalid(f"{place}: the character U+{ord(text[fault.position]):04X} is not allowed in YAML") from fault
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise Invalid(f"{place}: not YAML: {fault.problem or fault.context}") from fault
    except RecursionError as fault:
        raise Invalid(f"{source}: document {number + 1} is nested too deeply; expected at most {MAX_DEPTH}") from fault
    except ValueError as fault:
        raise Invalid(f"{source}: document {number} holds a number that cannot be read") from fault


def _check(root: yaml.Node, source: str, number: int) -> None:
    """Everything that PyYAML would accept and a reader of the manifest would not expect."""
    problems: list[str] = []
    measured: dict[int, tuple[int, int]] = {}
    open_nodes: set[int] = set()

    def problem(node: yaml.Node, sentence: str) -> None:
        mark = node.start_mark
        problems.append(f"{source}:{mark.line + 1}:{mark.column + 1}: document {number}: {sentence}")

    def measure(node: yaml.Node) -> tuple[int, int]:
        """Values in `node` and how deep they go, as if every alias were written out; looks at each node once."""
        if id(node) in open_nodes:
            problem(node, "an alias refers to what contains it")
            raise Invalid(*problems)
        if id(node) not in measured:
            open_nodes.add(id(node))
            if node.tag not in _PLAIN_TAGS:
                problem(node, f"the tag {node.tag.replace(_TAG, '!!')} is not allowed; expected plain values")
            if isinstance(node, yaml.MappingNode):
                _check_keys(node, problem)
            below = [measure(child) for child in _children(node)]
            measured[id(node)] = 1 + sum(size for size, _ in below), 1 + max((depth for _, depth in below), default=0)
            open_nodes.discard(id(node))
        return measured[id(node)]

    size, depth = measure(root)
    if size > MAX_VALUES:
        problem(root, f"holds more than {MAX_VALUES} values, aliases counted as what they repeat")
    if depth > MAX_DEPTH:
        problem(root, f"is nested {depth} deep; expected at most {MAX_DEPTH}")
    if problems:
        raise Invalid(*problems)


def _check_keys(node: yaml.MappingNode, problem: Callable[[yaml.Node, str], None]) -> None:
    first: dict[str, int] = {}
    for key, _ in node.value:
        if key.tag == _TAG + "merge":
            continue
        if key.tag != _TAG + "str":
            problem(key, f"the key {_written(key)} is not a string; quote it")
        elif key.value in first:
            problem(key, f'the key "{key.value}" comes twice, first in line {first[key.value]}')
        else:
            first[key.value] = key.start_mark.line + 1


def _written(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "that is a mapping or a list"


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _child(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """The node that marks where `step` begins, and the one that holds its value."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None
