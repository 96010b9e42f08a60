"""Reads the YAML that people write: strictly, with file and line of all faults at once, and no passwords or keys."""

from __future__ import annotations

import gzip
import os
import re
import stat
import types
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from trainyard.errors import ConfigurationError, DataError, did_you_mean
from trainyard.escape import one_line
from trainyard.spec.plain_yaml import MAX_BYTES, MAX_DEPTH, Fault, Location, YamlText, dotted
from trainyard.uris import is_bucket, path_error, resolve, scheme, without_secrets

FOLDER = "folder"
SECRETS = "secrets"
"""The section whose values no message repeats: a person may have written a secret instead of its reference."""
MAX_FAULTS = 20  # shown of one document; chosen
_CONTRADICTION = "contradiction"

# Keys in the context of pydantic's errors: of the nearest value, and of the known values, in quotes.
_BOUNDS = {"greater_than_equal": "ge", "less_than_equal": "le"}
_KNOWN_VALUES, _QUOTED = {"literal_error": "expected", "union_tag_invalid": "expected_tags"}, re.compile(r"'([^']*)'")
_SHOWN, _LONGEST = 80, 600  # characters of a value and of a sentence in a message; chosen
T = TypeVar("T", bound=BaseModel)
# Words in the name of a variable or option that mark a secret; KEY alone does not.
_SECRET_NAMES = re.compile(
    r"(?:^|[_.-])(?:SECRET|PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|TOKEN|CREDENTIALS?|BEARER|APIKEY"
    r"|(?:API|ACCESS|ACCOUNT|PRIVATE|SIGNING|ENCRYPTION|SHARED|SAS|AUTH)[_.-]?KEY)"
    r"(?:[_.-](?!FILE|PATH|DIR|URL|URI|ENDPOINT|NAME|TYPE|ARN)|$)",
    re.IGNORECASE,
)
# Values that are secrets by their form, in any text.
_KEYS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS
    r"|\bAIza[\w-]{35}"  # Google
    r"|\bya29\.[\w-]{20}"
    r"|\bgh[oprsu]_\w{36}|\bgithub_pat_\w{22}"
    r"|\bhf_[A-Za-z]{34}"
    r"|\bglpat-[\w-]{20}"
    r"|\bxox[abprs]-[\w-]{10}"
    r"|\bsk-[\w-]{32}"
    r"|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\."  # JSON Web Token
)
# The beginnings of these. A large file is searched for them first, because the expression alone is slow.
_KEY_STARTS = (
    *("-----BEGIN ", "AKIA", "ASIA", "AIza", "ya29.", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_"),
    *("hf_", "glpat-", "xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-", "sk-", "eyJ"),
)
# In a value alone: code may have them around a variable.
_SECRET_VALUES = re.compile(
    _KEYS.pattern + r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r'|"private_key"'
    r"|\b[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@"  # a password in a URL
    r"|(?:^|\s)[^\s/:@]+:[^\s/:@]+@(?!sha256:)"  # and before the name of a registry
    r"|(?:AccountKey|SharedAccessSignature)="  # Azure
    r"|\b[Aa]uthorization['\"]?\s*[:=]\s*\S"
    r"|\b(?:[Bb]earer|[Bb]asic)\s+(?=\S*\d)[\w.~+/-]{8,}"
)
# Values inside a value: options of a program, lines of a file, parameters of a URL.
_NAMED_VALUES = re.compile(
    r"(?:(?:^|[\s'\"])--?D?(?P<option>[A-Za-z][\w.-]*)(?:\s*[=:]\s*|\s+)"
    r"|(?:^|[\s,;&?{'\"])(?P<name>[A-Za-z][\w.-]*)['\"]?\s*[=:]\s*)(?!//)(?P<value>[^\s,;&}]+)"
)
# No secrets: a switch, a number, a variable, a path.
_NO_SECRETS = re.compile(
    r"(?:|true|false|yes|no|on|off|none|null|-?[\d.]{1,8}|\$\{?\w+\}?|(?:~|\.{1,2})?/.*)", re.IGNORECASE
)


class Strict(BaseModel):
    """A section of a document that people write: unknown keys, other types and what is no number are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def changed(section: BaseModel, exceptions: Collection[str] = ()) -> list[str]:
    """Return the fields of `section` with another value than their default, without `exceptions`."""
    fields = {name: field for name, field in type(section).model_fields.items() if name not in exceptions}
    return [
        name for name, field in fields.items() if getattr(section, name) != field.get_default(call_default_factory=True)
    ]


def contradictory(contradictions: Sequence[tuple[Location, str]]) -> PydanticCustomError:
    """Return the error for a validator that found contradictions: the location and reason of each."""
    return PydanticCustomError(_CONTRADICTION, "contradictions", {"contradictions": contradictions})


def is_file_name(name: str) -> bool:
    """Return True if `name` is a document's file, local or in a bucket."""
    return name.endswith((".yaml", ".yml"))


def find(kind: str, name: str, bundled: Path) -> Path:
    """Return the file of the document `name`: a path, or a name in the folder `bundled`.

    kind: the document's name in messages. Raises `ConfigurationError` with the known names.
    """
    if scheme(name):
        raise ConfigurationError(f"{safe(name)}: {kind}s are files of this machine. Name one, or copy it here.")
    if is_file_name(name) or "/" in name:
        return Path(name)
    known = sorted(path.stem for path in bundled.glob("*.yaml"))
    if name not in known:
        is_here = Path(f"{name}.yaml").is_file()
        near = f" Did you mean '{safe(name)}.yaml'?" if is_here else did_you_mean(name, known)
        raise ConfigurationError(
            f"no {kind} '{safe(name)}'. Known: {', '.join(known)}, or the path of a YAML file.{near}"
        )
    return bundled / f"{name}.yaml"


def load(path: Path, model: type[T], overrides: Sequence[str] = ()) -> T:
    """Return the document at `path` as `model`, after applying `key.path=value` overrides.

    Raises `ConfigurationError` with file, line and nearest known key of every fault.
    """
    return parse(read_text(path), model, name=str(path), overrides=overrides, folder=path.parent)


def parse(text: str, model: type[T], *, name: str, overrides: Sequence[str] = (), folder: Path | None = None) -> T:
    """Return the YAML `text` as `model`; `name` stands for the file in messages. Raises as `load`.

    folder: the file's folder, for validators that need other files, in their context as `FOLDER`.
    """
    read = YamlText(text, name)
    if not read.faults and not isinstance(read.content, dict):
        kinds: dict[type, str] = {type(None): "nothing", list: "a list", str: "a text", bool: "true or false"}
        kind_of_content = kinds.get(type(read.content), "a number")
        read.faults.append(Fault(f"{name}:1", f"keys with values are expected, {kind_of_content} was found."))
    if read.faults:
        raise _refusal([str(fault) for fault in read.faults])
    for override in overrides:
        _override(read, override)
    try:
        return model.model_validate(read.content, context={FOLDER: folder})
    except ValidationError as error:
        raise _refusal(_faults(error, model, read)) from error


def require_source(source: str, info: ValidationInfo, advice: str) -> str:
    """Return `source` in a validator. Raises ValueError if it is missing; relative to the folder in `info`."""
    folder = (info.context or {}).get(FOLDER)
    if folder is None or is_bucket(source):
        return source
    if not os.path.exists(resolve(folder, source)):  # noqa: PTH110 - Path's raises for a name too long
        raise ValueError(f"there is no such file or folder. {advice}")
    return source


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Return the text of the regular file at `path`, at most `limit` bytes. Raises `ConfigurationError`."""
    return _decoded(read_bytes(path, limit), str(path), limit)


def read_object(uri: str) -> str:
    """Return the text of the object at `uri` in a bucket, gunzipped if needed, at most MAX_BYTES.

    Raises `ConfigurationError` if it is missing or not text, `TransientError` if the store does not answer.
    """
    from trainyard.storage.buckets import bucket_source
    from trainyard.storage.listing import open_file

    if why := path_error(uri):
        raise ConfigurationError(f"{safe(uri)}: {why}.")
    try:
        with bucket_source.source_errors(uri, ""), open_file(uri, MAX_BYTES + 1) as stream:
            content = stream.read(MAX_BYTES + 1)
    except DataError as error:
        raise ConfigurationError(str(error)) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigurationError(f"{uri}: is damaged ({error}). Copy it again from its origin.") from error
    return _decoded(content, uri, MAX_BYTES)


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the first `limit` + 1 bytes of the regular file at `path`. Raises `ConfigurationError`."""
    try:
        # Non-blocking, because opening a pipe without a writer would wait forever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            before = os.fstat(stream.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise ConfigurationError(f"{path}: is no plain file. Name a YAML file.")
            content = stream.read(limit + 1)
            after = os.fstat(stream.fileno())
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise ConfigurationError(f"{path}: was changed while it was read. Run the command again.")
            return content
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{safe(path)}: cannot be read ({reason}). Name a YAML file that exists.") from error


def _decoded(content: bytes, name: str, limit: int) -> str:
    if len(content) > limit:
        raise ConfigurationError(f"{name}: is larger than {limit:,} bytes, the maximum.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{name}:{line}: is not UTF-8 text.") from error


def _refusal(faults: Sequence[str]) -> ConfigurationError:
    more = [f"{len(faults) - MAX_FAULTS} more faults."] if len(faults) > MAX_FAULTS else []
    return ConfigurationError(*faults[:MAX_FAULTS], *more)


def _override(read: YamlText, override: str) -> None:
    """Apply one `key.path=value` to a parsed document. Raises `ConfigurationError`."""
    key, equals, value = override.partition("=")
    shown = f"--set {safe(f'{key}=…' if is_secret(key, value) else override)}"
    parts = tuple(key.strip().split("."))
    if not equals or not key:
        raise ConfigurationError(f"{shown}: no '='. Write it as key.path=value, such as train.epochs=3.")
    if len(parts) > MAX_DEPTH:
        raise ConfigurationError(f"{shown}: no such key. Write it as key.path=value, such as train.epochs=3.")
    section: Any = read.content
    for parent in parts[:-1]:
        section = section.setdefault(parent, {}) if isinstance(section, dict) else None
        if section is None:
            break
    if not isinstance(section, dict):
        raise ConfigurationError(f"{shown}: '{dotted(parts[:-1])}' is a value and holds no keys.")
    parsed = YamlText(value, "value")
    if parsed.faults:
        raise _refusal([f"{shown}: {safe(fault.why)}" for fault in parsed.faults])
    section[parts[-1]] = parsed.content
    read.origins[parts] = shown


def safe(value: object) -> str:
    """Return `value` for a message: one line, shortened, without the secrets of a URI."""
    text = one_line(without_secrets(str(value)))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _faults(error: ValidationError, model: type[BaseModel], read: YamlText) -> list[str]:
    faults = []
    for fault in _single_faults(error):
        if fault.get("ctx", {}).get("expected") == "''":
            continue  # of `Name | Literal[""]`, the fault of the name says it
        message = fault["msg"].removeprefix("Value error, ")
        at = fault["loc"] if fault["type"] == _CONTRADICTION else _location_in(fault, read.content)
        origin = next(read.origins[at[:n]] for n in range(len(at), -1, -1) if at[:n] in read.origins)
        if fault["type"] == "extra_forbidden":
            known = _known_keys(model, at[:-1])
            deeper = _deeper(model, at)
            near = f" Did you mean '{deeper[0]}'?" if deeper else did_you_mean(str(at[-1]), known)
            text = f"unknown key.{near} Allowed here: {', '.join(known)}."
        elif known := _QUOTED.findall(fault.get("ctx", {}).get(_KNOWN_VALUES.get(fault["type"]), "")):
            value = str(fault["ctx"].get("tag", fault["input"]))
            if "tag" in fault["ctx"]:
                at = (*at, fault["ctx"]["discriminator"].strip("'"))
            text = f"no such value.{did_you_mean(value, known)} Known: {', '.join(known)}. Received: '{safe(value)}'."
        elif fault["type"] == "union_tag_not_found":
            key = fault["ctx"]["discriminator"].strip("'")
            text = f"lacks the key '{key}'. Received: {safe(', '.join(map(str, fault['input'])))}."
        elif fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
            text = f"is a value, and keys with values are expected.{_received(at, fault['input'])}"
        elif fault["type"] == "string_pattern_mismatch" and (meaning := _meaning(model, at)):
            text = f"is not written as it has to be. {meaning}{_received(at, fault['input'])}"
        elif fault["type"] == "missing":
            text = "is required and missing."
            if len(at) < len(fault["loc"]) and isinstance(fault["loc"][-1], int):  # of a list of fixed length
                text = f"{fault['loc'][-1]} values were given, and more are needed. Received: {safe(fault['input'])}."
        else:
            message = one_line(without_secrets(message))[:_LONGEST]
            text = (message if message.endswith((".", "?")) else f"{message}.") + _received(at, fault["input"])
            if bound := _BOUNDS.get(fault["type"]):
                text += f" The nearest that works is {fault['ctx'][bound]}."
        faults.append(f"{origin}: {safe(dotted(at))}: {text}")
    return list(dict.fromkeys(faults))


def _received(at: Location, value: object) -> str:
    """Return the received value for a message, '' if it is not a scalar or may be a secret."""
    is_plain = isinstance(value, str | int | float | bool | list | None)
    may_be_secret = SECRETS in at or is_secret(str(at[-1]) if at else "", str(value))
    return f" Received: '{safe(value)}'." if is_plain and not may_be_secret else ""


def _single_faults(error: ValidationError) -> Iterator[Any]:
    """Yield the faults of `error`, with the contradictions of a `contradictory` one by one."""
    for fault in error.errors(include_url=False):
        if fault["type"] != _CONTRADICTION:
            yield fault
        for location, message in fault.get("ctx", {}).get("contradictions", ()):
            yield {"type": _CONTRADICTION, "loc": (*fault["loc"], *location), "msg": message, "input": {}}


def _location_in(fault: Any, content: Any) -> Location:
    """Return the location of `fault`, without the parts that pydantic adds for keys and for members of unions."""
    existing: list[str | int] = []
    for index, part in enumerate(fault["loc"]):
        inside = isinstance(content, list) and isinstance(part, int) and part < len(content)
        if inside or (isinstance(content, dict) and part in content):
            content = content[part]
        elif fault["type"] != "missing" or index < len(fault["loc"]) - 1 or not isinstance(content, dict):
            continue
        existing.append(part)
    return tuple(existing)


def _known_keys(model: type[BaseModel], at: Location) -> list[str]:
    """Return the keys of the section `at` of `model`."""
    return sorted(_fields(model, at))


def _deeper(model: type[BaseModel], at: Location) -> list[str]:
    """Return the keys of sibling sections with the same name, such as train.epochs for epochs."""
    sections = _known_keys(model, at[:-1])
    return [f"{section}.{at[-1]}" for section in sections if at[-1] in _known_keys(model, (*at[:-1], section))]


def _meaning(model: type[BaseModel], at: Location) -> str:
    """Return the description of the key `at`, or ''."""
    field = _fields(model, at[:-1]).get(str(at[-1])) if at else None
    return (field.description or "") if field else ""


def _fields(model: type[BaseModel], at: Location) -> dict[str, FieldInfo]:
    current: list[Any] = [model]
    for part in at:
        current = [inner for outer in current for inner in _inner(outer, part)]
    models = [item for item in current if isinstance(item, type) and issubclass(item, BaseModel)]
    return {field.alias or name: field for item in models for name, field in item.model_fields.items()}


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


def holds_secret(text: str) -> bool:
    """Return True if `text`, such as a file of code, holds a key of a known form."""
    return any(_KEYS.match(text, at) for start in _KEY_STARTS for at in _positions(text, start))


def _positions(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def is_secret(name: str, value: str) -> bool:
    """Return True if `value`, called `name`, looks like a secret and not like a path, a switch or a number."""
    if _SECRET_VALUES.search(value):
        return True
    return any(
        _SECRET_NAMES.search(key) and not _NO_SECRETS.fullmatch(said) for key, said in [(name, value), *_pairs(value)]
    )


def _pairs(value: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values in `value`: `--name=value`, `--name value`, `name: value`."""
    for match in _NAMED_VALUES.finditer(value):
        yield match["option"] or match["name"], match["value"].strip("'\"")
