"""The words of a text, as `values.patterns.SPLIT_WORDS` splits it, which Python's re cannot."""

from __future__ import annotations

import bisect
import re
import unicodedata

from trainyard.values import patterns

# Han, Hiragana, Katakana, Thai, Lao, Khmer and Myanmar in RE2: first and last character of each range.
# fmt: off
OWN_FIRST = (
    3585, 3648, 3713, 3716, 3718, 3724, 3749, 3751, 3776, 3782, 3784, 3792, 3804, 4096, 6016, 6112, 6128, 6624, 11904,
    11931, 12032, 12293, 12295, 12321, 12344, 12353, 12445, 12449, 12541, 12784, 13008, 13056, 13312, 19968, 43488,
    43616, 63744, 64112, 65382, 65393, 94178, 94192, 110576, 110581, 110589, 110592, 110898, 110928, 110933, 110948,
    127488, 131072, 173824, 177984, 178208, 183984, 194560, 196608, 201552,
)
OWN_LAST = (
    3642, 3675, 3714, 3716, 3722, 3747, 3749, 3773, 3780, 3782, 3790, 3801, 3807, 4255, 6109, 6121, 6137, 6655, 11929,
    12019, 12245, 12293, 12295, 12329, 12347, 12438, 12447, 12538, 12543, 12799, 13054, 13143, 19903, 40959, 43518,
    43647, 64109, 64217, 65391, 65437, 94179, 94193, 110579, 110587, 110590, 110882, 110898, 110930, 110933, 110951,
    127488, 173791, 177977, 178205, 183969, 191456, 195101, 201546, 205743,
)
# fmt: on


_INVISIBLE_MARK, _EMOJI, _SIGN, _FLAG_LETTER, _SKIN_TONE = (
    re.compile(f"[{characters}]").match
    for characters in (
        *(patterns.INVISIBLE_MARKS, patterns.EMOJI, patterns.SIGNS),
        *(patterns.FLAG_LETTERS, patterns.SKIN_TONES),
    )
)
_FIRST_OWN = chr(OWN_FIRST[0])


def plain_words(text: str) -> list[str]:
    """Return the words of `text` in lower case."""
    text = text.lower()
    for pattern, replacement in patterns.TIDY_SIGNS:
        text = re.sub(pattern, replacement, text)
    words: list[str] = []
    last = ""  # the kind of the word that ends before the letter, if one does
    for letter in text:
        kind = _kind(letter)
        if last and kind and _continues(words[-1], last, letter, kind):
            words[-1] += letter
            continue
        if kind == "mark":
            kind = "own" if last else ""
        if kind:
            words.append(letter)
        last = kind
    return words


def _kind(letter: str) -> str:
    """Return letter (or digit), own (one that is a word), mark, emoji or sign; '' of what stands between words."""
    category = unicodedata.category(letter)[0]
    if category in "LN":
        return "own" if _has_own_word(letter) else "letter"
    if letter == " ":
        return ""
    if category == "M" or _INVISIBLE_MARK(letter):
        return "mark"
    if _EMOJI(letter):
        return "emoji"
    if _SIGN(letter):
        return "sign"
    return "own" if category == "C" and _has_own_word(letter) else ""  # newer than this Python's Unicode


def _continues(word: str, last: str, letter: str, kind: str) -> bool:
    """Return True if `letter` belongs to the `word` of the kind `last` before it."""
    if kind == "mark":
        return last != "letter" or not _has_own_word(letter)
    if last == "emoji":
        if word[-1] == patterns.JOINER:
            return kind in ("emoji", "sign")
        return bool(_SKIN_TONE(letter) or (_FLAG_LETTER(letter) and _FLAG_LETTER(word) and len(word) == 1))
    return kind == last == "letter" or (kind == last == "sign" and bool(_SIGN(word[-1])))


def _has_own_word(letter: str) -> bool:
    if letter < _FIRST_OWN:
        return False
    place = bisect.bisect_right(OWN_FIRST, ord(letter)) - 1
    return ord(letter) <= OWN_LAST[place]
