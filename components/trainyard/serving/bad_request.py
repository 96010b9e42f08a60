"""The error of a request that cannot be answered, and its messages."""

from __future__ import annotations

from typing import Any


class BadRequest(Exception):
    """A request that cannot be answered; the message names the field at fault."""


def mistyped(place: str, name: object, datatype: str, value: object) -> BadRequest:
    """Return the error for a `value` that is none of the `datatype` of the tensor `name`."""
    return BadRequest(f"{place}: a value of {datatype} is expected for {shown(name)}, {shown(value)} was found.")


def shown(value: Any) -> str:
    """Return a value as a message has it, in 60 characters at most."""
    return repr(value.decode(errors="replace") if isinstance(value, bytes) else value)[:60]
