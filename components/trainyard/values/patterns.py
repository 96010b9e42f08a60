"""The forms that the text of a value has. Python's `re` and RE2, of Arrow and TensorFlow, read each pattern alike."""

from __future__ import annotations

NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
COMMA_NUMBER = "[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?"
"""A number with a decimal comma, as some CSV files have it."""

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

EMOJI = (
    "\u2300-\u23ff\u25a0-\u2775\u2794-\u27bf\u2b00-\u2bff\U0001f000-\U0001f0ff\U0001f10d-\U0001f1ff"
    "\U0001f201-\U0001faff"
)
"""Characters, for a class, each of which is a word: emoji, stars and the like. In no version of Unicode letters."""

SIGNS = (
    "#$%&*+<=>@^|~¢-¦©¬®°±×÷\u0e3f\u20a0-\u20cf\u2103\u2109\u2116\u2122\u2190-\u22ff\u2500-\u259f\u27c0-\u2aff"
    "\u3200-\u321e\u322a-\u3247\u3260-\u327f\u328a-\u32b0\u32c0-\u33ff"
    "\uff03-\uff06\uff0a\uff0b\uff1c-\uff1e\uff20\uff3e\uff5c\uff5e\uffe0-\uffe6"
)
"""Characters, for a class, a run of which is a word, as in C++ and C#: signs, but no punctuation and no quotes."""

FLAG_LETTERS, SKIN_TONES, JOINER = "\U0001f1e6-\U0001f1ff", "\U0001f3fb-\U0001f3ff", "\u200d"
INVISIBLE_MARKS = f"{JOINER}\U000e0020-\U000e007f"
"""Characters, for a class, that belong to the one before them as marks do: the joiner, and letters of flags."""

_MARKS = rf"\pM{INVISIBLE_MARKS}"
_SPACE = r"\t-\r\x20"

TIDY_SIGNS = (
    (f"([{SIGNS}]{{3}})[{SIGNS}]+|[\ufe0e\ufe0f]", r"\1"),
    (r"[:;=]['’]?[-^]?\)+", " 🙂 "),
    (r"[:;=]['’]?[-^]?\(+", " 🙁 "),
    (r"[:;=][-^][/\\|]", " 😕 "),
)
"""Replacements in a text, in order: three signs of a longer run stay, no selectors of emoji, emoji for emoticons."""

SPLIT_WORDS = (
    (rf"(?:^|[{_SPACE}])[{_MARKS}]+|[^\pL\pN{_MARKS}{_SPACE}{SIGNS}{EMOJI}]+[{_MARKS}]*", " "),
    (
        rf"(?:[{FLAG_LETTERS}]{{2}}|[{EMOJI}])(?:[{_MARKS}{SKIN_TONES}]*{JOINER}[{EMOJI}{SIGNS}])*"
        rf"[{_MARKS}{SKIN_TONES}]*|[{SIGNS}]+[{_MARKS}]*"
        rf"|[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}\p{{Thai}}\p{{Lao}}\p{{Khmer}}\p{{Myanmar}}][{_MARKS}]*",
        r" \0 ",
    ),
)
"""Replacements in a text in lower case, for RE2, after which spaces stand between its words.

The first takes away what is neither letter nor digit of any script, emoji or sign, nor a mark (such as Hindi vowels)
that follows one of them. The second sets apart emoji with what is joined to them, runs of signs, and the characters
of scripts that put no space between words.
"""
