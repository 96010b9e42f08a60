"""Where the words of a text begin and end."""

from __future__ import annotations

import pytest

from trainyard.steps.preprocess.transforming.words import _plain_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा"]),
        ("Cafe\u0301 naïve", ["cafe\u0301", "naïve"]),
        ("بِسْمِ اللَّهِ", ["بِسْمِ", "اللَّهِ"]),
        ("\u0301a, I ❤\ufe0f it 1\ufe0f\u20e3!", ["a", "i", "it", "1\ufe0f\u20e3"]),
        ("你好,world_2", ["你", "好", "world", "2"]),
        ("日本のホテルA棟", ["日", "本", "の", "ホ", "テ", "ル", "a", "棟"]),
        ("ที่ดี", ["ที่", "ดี"]),
        ("[ILUG] DEAL", ["ilug", "deal"]),
        ("(re): _x_ 'y'", ["re", "x", "y"]),
        ("\u0301 \u0301a", ["a"]),
        ("3.14", ["3", "14"]),
        ("", []),
    ],
)
def test_words_are_letters_digits_and_the_marks_behind_them(text: str, words: list[str]) -> None:
    """Marks belong to the letter before them; in scripts that put no space between words each character is one."""
    assert [word.decode() for word in _plain_words([text])[0].numpy().tolist()] == words
