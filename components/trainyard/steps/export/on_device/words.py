"""The words of a text, as `values.patterns.BETWEEN_WORDS` and `WORD_OF_ITS_OWN` cut it, which Python's re cannot."""

from __future__ import annotations

import bisect
import unicodedata
from collections.abc import Iterator

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


def plain_words(text: str) -> list[str]:
    """Return the words of `text` in lower case."""
    words: list[str] = []
    word, alone = "", False
    for letter, kind in _kinds(text.lower()):
        is_own = _has_own_word(letter) and not (kind == "M" and alone)
        if kind == " " or is_own or (alone and kind != "M"):
            words += [word] if word else []
            word, alone = "", is_own
        word += letter if kind != " " else ""
    return [*words, word] if word else words


def _kinds(text: str) -> Iterator[tuple[str, str]]:
    """Yield each character with L, N or M (a mark behind one of them), or a space for what stands between words."""
    before = " "
    for letter in text:
        kind = unicodedata.category(letter)[0]
        if kind == "C" and _has_own_word(letter):  # newer than this Python's Unicode
            kind = "L"
        if kind not in "LN" and (kind != "M" or before == " "):
            kind = " "
        before = kind
        yield letter, kind


def _has_own_word(letter: str) -> bool:
    place = bisect.bisect_right(OWN_FIRST, ord(letter)) - 1
    return place >= 0 and ord(letter) <= OWN_LAST[place]
