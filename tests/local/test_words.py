"""The words and the days of texts, in the transform graph and on a device."""

from __future__ import annotations

import datetime
import os
import random
import re
import subprocess
import sys
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from trainyard.steps.export.on_device.fingerprint import fingerprint64
from trainyard.steps.export.on_device.words import plain_words
from trainyard.steps.preprocess.transforming import vocabularies
from trainyard.steps.preprocess.transforming.features import Calendar
from trainyard.values.columns import count_known, word_texts
from trainyard.values.patterns import EMOJI, SIGNS
from trainyard.values.text import day

LOWER = """
import sys
from trainyard.data.values import lower_tensor
sys.stdout.buffer.write(b"".join(lower_tensor([sys.argv[1]]).numpy()))
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा"]),
        ("Cafe\u0301 naïve", ["cafe\u0301", "naïve"]),
        ("بِسْمِ اللَّهِ", ["بِسْمِ", "اللَّهِ"]),
        ("\u0301a, I ❤\ufe0f it 1\ufe0f\u20e3!", ["a", "i", "❤", "it", "1\u20e3"]),
        ("C, C++ and C#: .NET, AT&T", ["c", "c", "++", "and", "c", "#", "net", "at", "&", "t"]),
        ('word, (word) "word." it\'s well-known `x` a/b', ["word"] * 3 + ["it", "s", "well", "known", "x", "a", "b"]),
        ("50% of $5 == <b> ====== $$$$$", ["50", "%", "of", "$", "5", "==", "<", "b", ">", "===", "$$$"]),
        ("nice:) ;-) =)) http://a.b :( :'-( :-/", ["nice", "🙂", "🙂", "🙂", "http", "a", "b", "🙁", "🙁", "😕"]),
        ("👍👍🏽👨\u200d👩\u200d👧x🇩🇪🇫🇷🇩", ["👍", "👍🏽", "👨\u200d👩\u200d👧", "x", "🇩🇪", "🇫🇷", "🇩"]),
        ("❤\ufe0f\u200d🔥 #\ufe0f\u20e3 ★★☆ 9°C 5㎡", ["❤\u200d🔥", "#\u20e3", *"★★☆", "9", "°", "c", "5", "㎡"]),
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
def test_words_are_letters_digits_signs_and_the_marks_behind_them(text: str, words: list[str]) -> None:
    """Marks belong to the letter before them; in scripts that put no space between words each character is one."""
    assert [word.decode() for word in vocabularies.plain_words([text])[0].numpy().tolist()] == words
    assert plain_words(text) == words


def test_a_device_cuts_texts_as_the_transform_does() -> None:
    draw = random.Random(1)
    letters = "aBÉßΣİ09٣²½ \t\n-_.’ े़ािक्ष漢字かなカー々〇ไทยกำາລខ្មែမြ한\u0301🎉👍🏽\u200d𠀀𱍐Ａǅﬁ"
    letters += "😀❤♀↔🏴🇩🇪🇫❶🄀🈀🈁©℃㈱＃—█★☆\ufe0f\ufe0e\u20e3\u200c\u200d\U000e0067\x85\xa0\u2028\x1c"
    letters += "++##&==<>@^:;(()))/\\-'[!?,\"`"
    texts = ["".join(draw.choices(letters, k=draw.randrange(12))) for _ in range(10000)] + ["One\0Two ΟΔΟΣ\0"]
    expected = [[word.decode() for word in words] for words in vocabularies.plain_words(tf.constant(texts)).to_list()]
    assert [plain_words(text) for text in texts] == expected
    vocabulary = pa.array({word for words in expected for word in words}, pa.string())
    assert count_known(pa.array(texts), vocabulary, is_text=True) == sum(map(bool, expected))
    assert word_texts(pa.array(texts)).to_pylist() == [" ".join(words) for words in expected]


def test_signs_and_emoji_are_no_letters_digits_marks_or_spaces() -> None:
    characters = [chr(point) for point in range(sys.maxunicode + 1)]
    for known in (SIGNS, EMOJI):
        kinds = {unicodedata.category(letter)[0] for letter in re.findall(f"[{known}]", "".join(characters))}
        assert kinds <= {"S", "P", "C"}


def test_the_locale_of_a_machine_changes_no_word() -> None:
    text = " ".join([*map(chr, range(0xC0, 0x180)), "TITLE İI ΟΔΟΣ J\u0300"])
    environment = {**os.environ, "LC_ALL": "tr_TR.UTF-8"}
    done = subprocess.run([sys.executable, "-c", LOWER, text], env=environment, stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode() == text.lower()


def test_a_device_gives_values_out_of_vocabulary_the_ids_that_the_transform_gives() -> None:
    draw = random.Random(1)
    texts = [draw.randbytes(size) for size in range(300) for _ in range(2)]
    buckets = (1 << 63) - 1
    expected = tf.strings.to_hash_bucket_fast(texts, buckets).numpy().tolist()
    assert [fingerprint64(text) % buckets for text in texts] == expected


def test_only_days_of_the_calendar_are_days_in_the_graph() -> None:
    texts = [f"{start}-{number}" for start in ("1900-02", "2023-02", "2024-02", "2024-04") for number in range(28, 32)]
    texts += ["0000-01-01", "0001-01-01", "9999-12-31", "2024-13-01", "today", ""]
    dates = [datetime.date.fromisoformat(text) if day(text) else None for text in texts]
    assert 0 < dates.count(None) < len(dates)
    calendar = Calendar(tf.constant(texts))
    assert calendar.month.numpy().tolist() == [date.month if date else 0 for date in dates]
    since_1970 = [date.toordinal() - 719163 if date else np.nan for date in dates]
    np.testing.assert_array_equal(calendar.days.numpy(), since_1970)
