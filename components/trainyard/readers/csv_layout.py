"""Recognizes the encoding of a CSV file, and the lines above and below its header that are no rows."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile

from trainyard.readers.table_file import Dialect, TableFile
from trainyard.spec.columns import DELIMITERS, Delimiter, Encoding, column_names
from trainyard.storage.listing import open_file
from trainyard.values.patterns import COMMA_NUMBER, MISSING, NUMBER, UTF16, UTF32

_BYTES = 4 << 20  # chosen: of the first file, looked through for letters that are no ASCII
_LINES = 200  # chosen: looked through for lines that are no rows
_MOST_ABOVE = 30  # chosen: lines above the header
_LEAST_ROWS = 3  # chosen: rows below it that have one number of cells
_ALIKE = 0.9  # chosen: share of the lines below the header that have its number of cells
_COMMENT = "#"
_FOREIGN_RUN = re.compile(rb"[\x80-\xff]{3,}")  # of other scripts' encodings; Western letters mostly stand alone
_NUMBER = f"{NUMBER}|{COMMA_NUMBER}"
_THOUSANDS = r"[+-]?[1-9][0-9]{0,2},[0-9]{3}"
_FOREIGN = 0.25  # chosen: share of the bytes above 127 in such runs


def likely_dialect(file: TableFile) -> Dialect:
    """Return the dialect of `file`, whose delimiter is None, with what its first lines show.

    An encoding that is not recognized stays UTF-8, of which the reader says what is wrong.
    """
    try:
        with open_file(file.path) as stream:
            content = stream.read(_BYTES)
    except (OSError, EOFError):
        return file.dialect  # the reader says why
    encoding = _encoding(content)
    dialect = replace(file.dialect, encoding=encoding)
    text = content.decode(encoding, "replace").removeprefix("\ufeff")
    lines = text.splitlines()[:_LINES]
    if text.startswith("sep="):  # Excel's line, which the reader takes
        return replace(dialect, comma_numbers=_comma_numbers(*_cells(dialect, lines[1:])))
    comment = _comment(lines)
    kept = [(number, line) for number, line in enumerate(lines, 1) if not (comment and line.startswith(comment))]
    kept = [(number, line) for number, line in kept if line.strip()]
    rows, delimiter = _cells(dialect, [line for _, line in kept])
    above = _above(rows)
    skipped = [number for number, _ in kept[:above]]
    if rows and _are_units(rows[above:]):
        skipped.append(kept[above + 1][0])
        del rows[above + 1]
    commas = _comma_numbers(rows[above:], delimiter)
    return replace(dialect, comment=comment, skip_rows=tuple(skipped), comma_numbers=commas)


def _encoding(content: bytes) -> Encoding:
    if content[:4] in UTF32:
        return "utf-8"
    if content[:2] in UTF16:
        return "utf-16"
    with suppress(UnicodeDecodeError):
        content[: content.rfind(b"\n") + 1 or len(content)].decode()
        return "utf-8"
    foreign = sum(len(run) for run in _FOREIGN_RUN.findall(content))
    letters = sum(byte > 127 for byte in content)
    try:
        content.decode("cp1252")
    except UnicodeDecodeError:
        return "utf-8"
    return "cp1252" if foreign <= _FOREIGN * letters and b"\0" not in content else "utf-8"


def _comment(lines: Sequence[str]) -> str | None:
    """Return '#' if the file begins with comments, not with a header whose first name begins so."""
    first = list(takewhile(lambda line: line.startswith(_COMMENT), lines))
    if not first or len(first) == len(lines):
        return None
    last, following = first[-1], lines[len(first)]
    is_header = any(0 < last.count(mark) == following.count(mark) for mark in DELIMITERS)
    return None if is_header and not last.removeprefix(_COMMENT)[:1].isspace() else _COMMENT


def _cells(dialect: Dialect, lines: Sequence[str]) -> tuple[list[list[str]], Delimiter]:
    """Return the cells of the lines by the delimiter that most of them agree on, or nothing, and this delimiter."""
    best: tuple[int, list[list[str]], Delimiter] = (0, [], ",")
    for delimiter in DELIMITERS:
        options = replace(dialect, delimiter=delimiter).python_options
        with suppress(csv.Error):
            rows = list(csv.reader(io.StringIO("\n".join(lines), newline=""), strict=True, **options))
            if len(rows) != len(lines):  # a cell holds a line break
                continue
            counts = Counter(len(row) for row in rows if len(row) > 1)
            times = max(counts.values(), default=0)
            if times > best[0]:
                best = times, rows, delimiter
    return best[1:]


def _above(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of rows above the header: they have other numbers of cells than it and the rows below it."""
    counts = Counter(len(row) for row in rows)
    usual = max((count for count in counts if count > 1), key=lambda count: counts[count], default=0)
    above = next((index for index, row in enumerate(rows) if len(row) == usual), 0)
    below = rows[above + 1 :]
    if not 0 < above <= _MOST_ABOVE or len(below) < _LEAST_ROWS:
        return 0
    alike = sum(len(row) == usual for row in below)
    header = [name.strip() for name in rows[above]]
    is_header = (
        all(header) and len({*header}) == len(header) and not any(re.fullmatch(_NUMBER, name) for name in header)
    )
    return above if is_header and alike >= _ALIKE * len(below) else 0


def _are_units(rows: Sequence[Sequence[str]]) -> bool:
    """Return True if the row below the header says units: numbers stand below it where it has texts."""
    if len(rows) < 2 + _LEAST_ROWS:
        return False
    header, units, below = rows[0], rows[1], [row for row in rows[2:] if len(row) == len(rows[0])]
    if len(units) != len(header) or len(below) < _LEAST_ROWS:
        return False
    numbers, texts = [], []
    for index, unit in enumerate(cell.strip() for cell in units):
        values = [row[index].strip() for row in below]
        known = [value for value in values if value.lower() not in MISSING]
        if known and all(re.fullmatch(_NUMBER, value) for value in known):
            numbers.append(unit)
        else:
            texts.append(unit in ("", "-") or (unit not in values and len({*values}) < len(values)))
    named = [unit for unit in numbers if unit not in ("", "-")]
    are_none = all(unit.lower() not in MISSING and not re.fullmatch(_NUMBER, unit) for unit in named)
    return len(named) * 2 >= len(numbers) > 0 and bool(named) and are_none and all(texts)


def _comma_numbers(rows: Sequence[Sequence[str]], delimiter: Delimiter) -> tuple[str, ...]:
    """Return the columns of numbers, below a header, if some surely have a decimal comma and none has a point.

    In 1,234 the comma may stand between thousands.
    """
    if delimiter == "," or not rows:
        return ()
    names, below = column_names(rows[0]), [row for row in rows[1:] if len(row) == len(rows[0])]
    found, is_sure = [], False
    for index, name in enumerate(names):
        cells = {cell for row in below if (cell := row[index].strip()).lower() not in MISSING}
        if not all(re.fullmatch(_NUMBER, cell) for cell in cells):
            continue
        commas = [cell for cell in cells if "," in cell]
        if any("." in cell for cell in cells):
            if not commas:
                return ()
            continue
        found.append(name)
        is_sure |= not all(re.fullmatch(_THOUSANDS, cell) for cell in commas)
    return tuple(found) if is_sure else ()
