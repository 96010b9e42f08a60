"""Reads YAML as plain data: no tags or aliases, the scalars of YAML 1.2, and limits that apply before parsing.

YAML 1.2 reads `no`, `12:30` and `2024-01-01` as text, and `1e-3` as a number. PyYAML implements YAML 1.1, where they
are False, 750, a date and text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from trainyard import escape

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
_LONGEST_NUMBER = 64  # characters; no number of any document needs as many, so that a longer one is text

Location = tuple[str | int, ...]

# Source: the core schema, https://yaml.org/spec/1.2.2/#103-core-schema
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"(?P<ten>[-+]?[0-9]+)|0o(?P<eight>[0-7]+)|0x(?P<sixteen>[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"(?P<infinite>[-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True)
class Fault:
    """A fault in a YAML text: a sentence and a position."""

    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


class YamlText:
    """A YAML text as plain values. origins: the position of each value, by its location."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.origins: dict[Location, str] = {}
        self.faults: list[Fault] = []
        self.content: Any = None
        if len(text) > MAX_BYTES:
            self.faults.append(Fault(name, f"{len(text):,} characters. At most {MAX_BYTES:,} are read."))
            return
        try:
            node = _Plain(text).get_single_node()
            self.content = None if node is None else self._value(node, ())
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, int(error.position)) + 1
            self.faults.append(Fault(f"{name}:{line}", f"the character {error.character:#x} is not allowed."))
        except yaml.MarkedYAMLError as error:
            place = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
            self.faults.append(Fault(f"{name}{place}", f"not valid YAML ({error.problem})."))
        except _Refused as error:
            self._fault(error.mark, error.why)

    def _value(self, node: yaml.Node, at: Location) -> Any:
        self.origins.setdefault(at, self._place(node.start_mark))
        if len(at) > MAX_DEPTH:
            self._fault(node.start_mark, f"nested more than {MAX_DEPTH} levels deep")
        elif isinstance(node, yaml.MappingNode):
            return self._mapping(node, at)
        elif isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*at, index)) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        return None

    def _mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, mark = key_node.value, key_node.start_mark
            if not isinstance(key, str):
                self._fault(mark, "a key must be a text")
            else:
                if key in result:
                    self._fault(mark, f"{dotted((*at, key))}: given twice")
                self.origins[(*at, key)] = self._place(mark)
                result[key] = self._value(value_node, (*at, key))
        return result

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        if node.style is not None:  # quoted, or a block
            return text
        if text in _NULL:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if match := _NOT_FINITE.fullmatch(text):
            sign = match["infinite"]
            return math.nan if sign is None else -math.inf if sign == "-" else math.inf
        integer = _INTEGER.fullmatch(text)
        if len(text) > _LONGEST_NUMBER or (not integer and not _FLOAT.fullmatch(text)):
            return text
        if not integer:
            return float(text)
        base = {"ten": 10, "eight": 8, "sixteen": 16}[integer.lastgroup or "ten"]
        return int(integer[integer.lastindex or 0], base)

    def _fault(self, mark: yaml.Mark | None, text: str) -> None:
        self.faults.append(Fault(self._place(mark), f"{text}."))

    def _place(self, mark: yaml.Mark | None) -> str:
        return f"{self.name}:{mark.line + 1}" if mark else self.name


def load_all(text: str) -> list[Any]:
    """Return the YAML 1.1 documents that another program wrote into `text`. Raises `ValueError`, also if it is deep."""
    try:
        return list(yaml.load_all(text, Loader=_Shallow))
    except (yaml.YAMLError, _Refused, KeyError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error


def dump(content: Any, allow_unicode: bool = False, inline_leaves: bool = False) -> str:
    """Return `content` as YAML that `YamlText`, and every YAML 1.1 reader, read as the same values.

    inline_leaves: put mappings and lists of scalars on one line.

    It holds no '{{', which Argo takes for the start of a variable: texts with it are quoted, and escape it.
    """
    flow = None if inline_leaves else False
    text: str = yaml.dump(
        content, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, default_flow_style=flow
    )
    return text.replace("{{", r"{\x7b")


def flattened(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves below `value`, the content of a recipe, by their keys, each as YAML.

    Keys of a list of objects, such as evaluate.gates.0.min, are left out if they are unset.
    """
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from flattened(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        for index, part in enumerate(value):
            known = {name: leaf for name, leaf in part.items() if leaf is not None} if isinstance(part, dict) else part
            yield from flattened(known, f"{key}.{index}")
    else:
        yield key, dump(value, allow_unicode=True, inline_leaves=True).removesuffix("...\n").strip()


def comment(text: str, indent: int = 1) -> str:
    """Return `text` as a comment on one line, with special characters escaped."""
    return f"#{' ' * indent}{escape.one_line(text)}"


def dotted(at: Sequence[str | int]) -> str:
    """Return a location as a person writes it."""
    return ".".join(map(str, at)) or "document"


class _Refused(Exception):
    def __init__(self, mark: yaml.Mark | None, why: str) -> None:
        super().__init__(why)
        self.mark = mark
        self.why = why


class _Shallow(yaml.SafeLoader):
    """Limits nesting during scanning, because PyYAML's time for nested brackets grows with the cube of their number."""

    depth = 100

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level >= self.depth:
            raise _Refused(self.get_mark(), f"nested more than {self.depth} levels deep")
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        if len(self.indents) > self.depth:
            raise _Refused(self.get_mark(), f"nested more than {self.depth} levels deep")
        return bool(super().add_indent(column))


class _Plain(_Shallow):
    """Also rejects everything that is not plain data."""

    depth = MAX_DEPTH

    def fetch_alias(self) -> None:
        raise _Refused(self.get_mark(), "anchors and aliases are not allowed. Write the value out")

    def fetch_tag(self) -> None:
        mark = self.get_mark()
        handle, suffix = self.scan_tag().value
        raise _Refused(mark, f"the tag {handle or ''}{suffix[:40]} is not allowed. Leave it out")


class _Dumper(yaml.SafeDumper):
    """Quotes text that a reader of YAML 1.1 or YAML 1.2 would take for another type."""

    allow_unicode: bool

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        """Escape invisible characters and terminal controls; keep other characters."""
        unicode, self.allow_unicode = self.allow_unicode, self.allow_unicode and escape.is_safe(text)
        super().write_double_quoted(text, split)
        self.allow_unicode = unicode


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """Write lines as lines; quote invisible characters, also YAML 1.1 line ends, which PyYAML 6 reads as spaces."""
    style = ("|" if "\n" in value else None) if escape.is_safe(value, kept="\n") and "{{" not in value else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"(?:{_FLOAT.pattern}|0o[0-7]+)$"), list("-+0123456789.")
)
