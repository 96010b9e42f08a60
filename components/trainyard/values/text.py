"""The text that stands for a value: one for each value, in whatever way it was written."""

from __future__ import annotations

import datetime
import math
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from trainyard.values import patterns

_FALSE, _TRUE = frozenset(patterns.FALSE.split("|")), frozenset(patterns.TRUE.split("|"))
_LINE_BREAK = re.compile(patterns.LINE_BREAK)
_NUMBER = re.compile(patterns.NUMBER)
_WHOLE = re.compile(patterns.WHOLE)
_EXPONENT = re.compile(patterns.EXPONENT)
_TIMESTAMP = re.compile(patterns.TIMESTAMP)
_TIME = re.compile(patterns.TIME)
_DIGITS = frozenset("0123456789")
_LOOK_ALIKES = str.maketrans("авекмнорстухіјѕԁԛԝαβεικνορτυχ", "abekmhopctyxijsdqwabeikvoptux")  # Cyrillic, Greek; Latin
_SHORTEST_TIMESTAMP = len("2024-03-01T09:05")
UTC = datetime.timezone(datetime.timedelta(0))


def canonical(text: str) -> str:
    """Return the one text that stands for the value which `text` is a writing of; empty if it is missing.

    White space around it goes, and a line break in it becomes a space. Unicode is normalized (NFC). true, True and TRUE
    are one value, and so are 3, 3.0 and 3e+00, and a time with T, with zeros behind the second, or in another zone.
    """
    text = _one_line(text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if not text:
        return text
    if text[-1] in _DIGITS:
        if "." in text or "e" in text or "E" in text or text == "-0":
            return _number(text)
        if len(text) < _SHORTEST_TIMESTAMP:
            return text
    if text[0] in _DIGITS and len(text) >= _SHORTEST_TIMESTAMP and (match := _TIMESTAMP.fullmatch(text)):
        return _timestamp(match)
    if text in _TRUE:
        return "true"
    return "false" if text in _FALSE else text


def canonical_list(text: str, separator: str) -> str:
    """Return the values that `separator` stands between, each as `canonical` has it, empty ones left out."""
    return separator.join(filter(None, map(canonical, text.split(separator))))


def column_name(name: str) -> str:
    """Return the name of a column as every format has it: without white space around it, Unicode normalized (NFC)."""
    return unicodedata.normalize("NFC", name.strip())


def number(text: str) -> float | None:
    """Return the number that `text` writes, NaN if it stands for a missing one, None if it is none of 32 bits.

    True and false are 1 and 0.
    """
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        text = canonical(text)
        if text in ("true", "false"):
            return float(text == "true")
        if text.lower() in patterns.MISSING:
            return math.nan
        if not _NUMBER.fullmatch(text):
            return None
    found = float(text) + 0.0  # of -0 too
    return found if abs(found) <= patterns.MAX_FLOAT32 else None


def json_number(text: str) -> str:
    """Return the text that stands for a number in JSON: 1e5 may be a name elsewhere, here it is a number.

    One that is too large for 64 bits, such as 1e400, stays as it is.
    """
    found = float(text) if "e" in text or "E" in text else math.inf
    return repr(found) if math.isfinite(found) else text


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these names and values.

    Raises `ValueError` for a name that occurs twice, of which `json` keeps the last.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{repr(twice)[:60]} occurs twice in one object")
    return found


def alike(names: Iterable[str]) -> list[list[str]]:
    """Return the groups of names that differ by case, width, inner white space, invisible or look-alike letters alone.

    A look-alike is a Cyrillic or Greek letter with the shape of a Latin one.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
        folded = unicodedata.normalize("NFKC", visible).casefold().translate(_LOOK_ALIKES)
        groups.setdefault(" ".join(folded.split()), []).append(name)
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def day(text: str, *, hour: bool = False, zone: datetime.tzinfo = UTC) -> str | None:
    """Return the day YYYY-MM-DD that `text` begins with, with `hour` and THH behind it, T00 of a day without a time.

    A time with an offset is converted to `zone` first. Return '' if `text` is empty, None if it is of another form or
    there is no such day or time.
    """
    text = _one_line(text)
    if not text:
        return ""
    text = in_zone(text, zone)
    if not (found := re.fullmatch(patterns.DAY, text)):
        return None
    try:
        date = datetime.date.fromisoformat(found[1]).isoformat()
    except ValueError:
        return None
    return f"{date}T{found[3] or '00'}" if hour else date


def in_zone(text: str, zone: datetime.tzinfo) -> str:
    """Return a time with an offset as YYYY-MM-DD HH:MM:SS in `zone`, and any other text as it is."""
    match = _TIMESTAMP.fullmatch(text)
    return (match and match[5] and _converted(match, zone)) or text


def _one_line(text: str) -> str:
    text = text.strip()
    return _LINE_BREAK.sub(" ", text) if "\n" in text or "\r" in text else text


def _number(text: str) -> str:
    if text == "-0":
        return "0"
    if match := _WHOLE.fullmatch(text):
        return "0" if match[1] == "-0" else match[1]
    if match := _EXPONENT.fullmatch(text):
        return _without_exponent(match)
    if match := _TIMESTAMP.fullmatch(text):
        return _timestamp(match)
    if match := _TIME.fullmatch(text):
        return f"{match[1]}.{match[2]}" if match[2] else match[1]
    return text


def _without_exponent(match: re.Match[str]) -> str:
    """Return the number that `match` of `patterns.EXPONENT` writes, in digits alone, none of them lost."""
    digits, places = match[2] + (match[4] or ""), int(match[7])
    if "-" in (match[5], match[6]):
        digits, point = "0" * places + digits, 1
    else:
        digits, point = digits + "0" * (places - len(digits) + 1), places + 1
    whole, fraction = digits[:point].lstrip("0") or "0", digits[point:].rstrip("0")
    found = f"{whole}.{fraction}" if fraction else whole
    return found if found == "0" else match[1] + found


def _timestamp(match: re.Match[str]) -> str:
    """Return the time that `match` of `patterns.TIMESTAMP` writes: a day alone if it is midnight of no zone."""
    text = _in_utc(match) if match[5] else _local(match)
    return text.removesuffix(" 00:00:00")


def _local(match: re.Match[str]) -> str:
    fraction = (match[4] or "").rstrip("0").rstrip(".")
    return f"{match[1]} {match[2]}{match[3] or ':00'}{fraction}"


def _in_utc(match: re.Match[str]) -> str:
    second = _converted(match, UTC)
    return match[0] if second is None else second + _local(match)[19:] + "+00:00"


def _converted(match: re.Match[str], zone: datetime.tzinfo) -> str | None:
    """Return the second that `match` of `patterns.TIMESTAMP` writes in `zone`; None if there is no such day."""
    shift = datetime.timedelta(hours=int(match[7] or 0), minutes=int(match[8] or 0))
    try:
        second = datetime.datetime.fromisoformat(_local(match)[:19]).replace(tzinfo=UTC)
        moved = (second + shift if match[6] == "-" else second - shift).astimezone(zone)
    except (ValueError, OverflowError):  # a text like any other
        return None
    return f"{moved:%Y-%m-%d %H:%M:%S}".rjust(19, "0")
