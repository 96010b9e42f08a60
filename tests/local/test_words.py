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
        ("你好,world_2", ["你好", "world", "2"]),
        ("", []),
    ],
)
def test_a_mark_belongs_to_the_letter_before_it(text: str, words: list[str]) -> None:
    """The vowels of Hindi, the accents of decomposed French and the points of Arabic are no letters of their own."""
    assert [word.decode() for word in _plain_words([text])[0].numpy().tolist()] == words
