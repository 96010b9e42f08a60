"""Maps column names to the names that TensorFlow and Keras allow."""

from __future__ import annotations

import hashlib
import keyword
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard.spec.recipe import Data

_DIGEST = 4  # hexadecimal digits


@cache  # measured: 10 µs a name, which every request and batch asks of each column
def input_name(name: str) -> str:
    """Return the model input name of the feature `name`: ASCII letters, digits and underscores, a letter first.

    Accents are left out. Letters of other scripts become underscores, and a digest of the name stands at its end.
    Python's keywords and `self`, which TensorFlow takes for no input, get a prefix.

    >>> input_name("Größe in km/h")
    'Gro_e_in_km_h_cf31'
    """
    ascii_letters = "".join(
        letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter)
    )
    plain = re.sub(r"\W", "_", ascii_letters, flags=re.ASCII)
    if any(letter.isalnum() and not letter.isascii() for letter in ascii_letters):
        plain += f"_{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]}"
    is_reserved = keyword.iskeyword(plain) or plain == "self"
    return plain if plain[:1].isalpha() and not is_reserved else f"feature_{plain}"


def date_names(name: str, *, hour: bool = False) -> list[str]:
    """Return the feature names of the date `name`: days, month, weekday and, if requested, hour."""
    return [f"{name}_{part}" for part in ("days", "month", "weekday", *(["hour"] if hour else []))]


def faults(data: Data) -> Iterator[tuple[str, str]]:
    """Yield each column of `data` with an invalid name, and the reason."""
    reserved = {"label", "key", *data.labels}
    names: dict[str, str] = {}
    read = {name: feature for name, feature in data.inputs.items() if name not in data.labels}
    for name, feature in (data.features | read).items():
        parts = date_names(name, hour=feature.hour) if feature.type == "date" else ()
        for made in (name, *parts):
            if made in reserved or made.startswith(("raw/", "_")):
                yield (
                    name,
                    f"the name '{made}' is taken. Names differ from the label, 'label' and 'key', and begin neither "
                    "with '_' nor 'raw/'. Rename the column",
                )
            other = names.setdefault(input_name(made).lower(), name)
            if other != name:
                yield (
                    name,
                    f"'{made}' and a name of '{other}' would both be the input '{input_name(made)}' of the model. "
                    "Rename one of the columns",
                )
