"""The forms that the text of a value has. Python's `re` and RE2, of Arrow and TensorFlow, read each pattern alike."""

from __future__ import annotations

NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""Texts for a missing number, in any case."""

MAX_FLOAT32 = 3.4028234e38
MAX_EXACT = 1 << 53
"""From here on a float64 does not tell every integer from the next."""

_UTC_OFFSET = r"(Z|UTC|([+-])([01][0-9]|2[0-3]):?([0-5][0-9])?)"
TIME_OF_DAY = (
    r"[T ]([01][0-9]|2[0-3])(:[0-5][0-9](:[0-5][0-9]([.,][0-9]*)?)?"
    rf"|:[0-5][0-9](:[0-5][0-9])?(\.[0-9]+)? ?{_UTC_OFFSET})?"
)
"""The tail of a date; its first group is the hour. Other tails, such as PM or a zone's name, may mean another hour."""

DAY = rf"([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})({TIME_OF_DAY})?"
"""A day and the time that may follow it."""

DATE = rf"[0-9]{{4}}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])({TIME_OF_DAY})?"
"""A `DAY` whose month and day of the month are possible."""

ONLY_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"

UTF32, UTF16 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff"), (b"\xff\xfe", b"\xfe\xff")
"""The byte order marks of UTF-32, one of which begins with one of UTF-16."""

SPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
"""White space as Python and Arrow trim it."""

LINE_BREAK = r"[\t-\r\x20]*[\n\r][\t-\r\x20]*"
"""A line break within a text, with the white space around it."""

TRUE, FALSE = "true|True|TRUE", "false|False|FALSE"

WHOLE = r"(-?(0|[1-9][0-9]*))\.0+"
"""An integer as a float or a decimal is written; the first group is the integer."""

EXPONENT = r"(-?)([0-9])(\.([0-9]+)[eE]([+-]?)|[eE]([+-]))([0-9]{1,3})"
"""A number with an exponent as floats are written: with a point or a sign, so that 7e3 stays the name that it may be.

The groups are the sign, the first digit, -, the other digits, the exponent's sign (two places) and the exponent.
"""

TIMESTAMP = (
    r"([0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01]))[T ]((?:[01][0-9]|2[0-3]):[0-5][0-9])(:[0-5][0-9])?"
    rf"(\.[0-9]+)? ?{_UTC_OFFSET}?"
)
"""A day with a time; the groups are the day, HH:MM, :SS, .fff, the zone, and of that its sign, hours and minutes."""

TIME = r"([0-9]{2}:[0-9]{2}:[0-9]{2})\.([0-9]*?)0+"
"""A time of day with a fraction that ends in zeros; the groups are the time to the second, and the rest."""

WRITTEN_OTHERWISE = f"{WHOLE}|-0|{EXPONENT}|{TRUE}|{FALSE}|{TIME}|{TIMESTAMP}"
"""A text, but for its white space and characters, that may not be the one which stands for its value."""

BETWEEN_WORDS = r"^\pM+|[^\pL\pN\pM]+\pM*"
"""For RE2: neither letters nor digits of any script, nor the marks (such as Hindi vowels) that follow one of them."""

WORD_OF_ITS_OWN = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\pM*"
"""For RE2: a character of a script that puts no space between words, with its marks."""
