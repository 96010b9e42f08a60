"""How the texts of a table's cells are read, so that profiles, preprocess and predict read them alike."""

from __future__ import annotations

NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""What stands for a missing number, in any case."""

MAX_FLOAT32 = 3.4028234e38
DAY = r"([0-9]{4}-[0-9]{2}-[0-9]{2})([T ].*)?"
"""A day, and what may follow it."""

TIME_OF_DAY = r"[T ]([01][0-9]|2[0-3])([:.].*)?"
"""What follows a day, with its hour."""

UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""What a file in UTF-16 begins with."""
