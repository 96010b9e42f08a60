"""Reads the YAML that people write: strictly, all faults at once, each with its file and line."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from trainyard.core.errors import ConfigurationError, did_you_mean

MAX_BYTES = 1 << 20
MAX_DEPTH = 20

Location = tuple[str | int, ...]

_PLAIN = frozenset({"map", "seq", "str", "int", "float", "bool", "null"})


class Strict(BaseModel):
    """A section of a document that people write: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


T = TypeVar("T", bound=BaseModel)


def find(kind: str, name: str, bundled: Path) -> Path:
    """Return the file of the document `name`: a path, or the name of one in the folder `bundled`.

    `kind` stands for it in messages. Raises `ConfigurationError` with the known names.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    known = sorted(path.stem for path in bundled.glob("*.yaml"))
    if name not in known:
        raise ConfigurationError(
            f"no {kind} '{name}'. Known: {', '.join(known)}, or the path of a YAML file.{did_you_mean(name, known)}"
        )
    return bundled / f"{name}.yaml"


def load(path: Path, model: type[T], overrides: Sequence[str] = ()) -> T:
    """Return the document at `path` as `model`, with `key.path=value` overrides applied first.

    Raises `ConfigurationError` that names every fault with file, line and the nearest known key.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigurationError(f"{path}: {size} bytes. At most {MAX_BYTES} are read.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}). Name a YAML file that exists.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 text.") from error
    return parse(text, model, name=str(path), overrides=overrides)


def parse(text: str, model: type[T], *, name: str, overrides: Sequence[str] = ()) -> T:
    """Return the YAML `text` as `model`; `name` stands for the file in messages. Raises as `load`."""
    reader = _Reader(name)
    content = reader.read(text)
    if not reader.faults and not isinstance(content, dict):
        reader.faults.append(f"{name}:1: keys with values are expected, {type(content).__name__} was found.")
    if reader.faults:
        raise ConfigurationError("\n".join(reader.faults))
    for override in overrides:
        reader.override(content, override)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigurationError("\n".join(_faults(error, model, content, reader))) from error


class _Reader:
    """Turns YAML text into plain values and remembers where each came from."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.origins: dict[Location, str] = {}
        self.faults: list[str] = []

    def read(self, text: str) -> Any:
        try:
            for event in yaml.parse(text, Loader=yaml.SafeLoader):
                if isinstance(event, yaml.AliasEvent):
                    self._fault(event.start_mark, "anchors and aliases are not allowed. Write the value out")
                    return None
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
            return None if node is None else self._value(node, (), loader)
        except RecursionError:
            self.faults.append(f"{self.name}: nested more than {MAX_DEPTH} levels deep.")
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error)
            self.faults.append(f"{self.name}{f':{mark.line + 1}' if mark else ''}: not valid YAML ({problem}).")
        return None

    def override(self, content: dict[str, Any], override: str) -> None:
        """Change `content` by one `key.path=value`."""
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"--set {override}: no '='. Write it as key.path=value, such as train.epochs=3.")
        *parents, last = key.strip().split(".")
        section: Any = content
        for parent in parents:
            section = section.setdefault(parent, {}) if isinstance(section, dict) else None
            if section is None:
                break
        if not isinstance(section, dict):
            raise ConfigurationError(f"--set {override}: '{'.'.join(parents)}' is a value and holds no keys.")
        try:
            section[last] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigurationError(f"--set {override}: the value is not valid YAML.") from error
        self.origins[(*parents, last)] = f"--set {override}"

    def _value(self, node: yaml.Node, at: Location, loader: yaml.SafeLoader) -> Any:
        self.origins.setdefault(at, self._where(node.start_mark))
        if len(at) > MAX_DEPTH:
            self._fault(node.start_mark, f"nested more than {MAX_DEPTH} levels deep")
        elif node.tag.removeprefix("tag:yaml.org,2002:") not in _PLAIN:
            self._fault(node.start_mark, f"the tag {node.tag} is not allowed")
        elif isinstance(node, yaml.MappingNode):
            return self._mapping(node, at, loader)
        elif isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*at, index), loader) for index, item in enumerate(node.value)]
        else:
            return loader.construct_object(node)
        return None

    def _mapping(self, node: yaml.MappingNode, at: Location, loader: yaml.SafeLoader) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in result:
                self._fault(key_node.start_mark, f"{_dotted((*at, key))}: given twice")
            self.origins[(*at, key)] = self._where(key_node.start_mark)
            result[key] = self._value(value_node, (*at, key), loader)
        return result

    def _fault(self, mark: Any, text: str) -> None:
        self.faults.append(f"{self._where(mark)}: {text}.")

    def _where(self, mark: Any) -> str:
        return f"{self.name}:{mark.line + 1}"


def _faults(error: ValidationError, model: type[BaseModel], content: Any, reader: _Reader) -> list[str]:
    faults = []
    for fault in error.errors(include_url=False):
        message = fault["msg"].removeprefix("Value error, ")
        at = _place(fault["loc"], content)
        if not at and ": " in message:  # a check of the whole document names its place itself
            place, message = message.split(": ", 1)
            at = tuple(place.split("."))
        origin = next(reader.origins[at[:n]] for n in range(len(at), -1, -1) if at[:n] in reader.origins)
        if fault["type"] == "extra_forbidden":
            known = _known_keys(model, at[:-1])
            text = f"unknown key.{did_you_mean(str(at[-1]), known)} Allowed here: {', '.join(known)}."
        elif fault["type"] == "missing":
            text = "is required and missing."
        else:
            text = f"{message.removesuffix('.')}."
            if isinstance(fault["input"], str | int | float | bool | list | None):
                text += f" Received: {str(fault['input'])[:80]!r}."
        faults.append(f"{origin}: {_dotted(at)}: {text}")
    return list(dict.fromkeys(faults))


def _place(location: Location, content: Any) -> Location:
    """Leave out the parts that pydantic adds for union members: they stand in no document."""
    kept: list[str | int] = []
    for index, part in enumerate(location):
        if (isinstance(content, dict) and part in content) or (isinstance(content, list) and isinstance(part, int)):
            content = content[part]  # type: ignore[index]
        elif index < len(location) - 1 or not isinstance(content, dict):
            continue
        kept.append(part)
    return tuple(kept)


def _known_keys(model: type[BaseModel], at: Location) -> list[str]:
    """Return the keys that the section `at` of `model` takes."""
    current: list[Any] = [model]
    for part in at:
        current = [inner for outer in current for inner in _inner(outer, part)]
    models = [item for item in current if isinstance(item, type) and issubclass(item, BaseModel)]
    return sorted({field.alias or name for item in models for name, field in item.model_fields.items()})


def _inner(annotation: Any, part: str | int) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {field.alias or name: field for name, field in annotation.model_fields.items()}
        return _members(fields[part].annotation) if part in fields else []
    return [member for argument in get_args(annotation)[-1:] for member in _members(argument)]


def _members(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for argument in get_args(annotation) for member in _members(argument)]
    if hasattr(annotation, "__metadata__"):
        return _members(get_args(annotation)[0])
    return [annotation]


def _dotted(at: Sequence[str | int]) -> str:
    return ".".join(map(str, at)) or "document"
