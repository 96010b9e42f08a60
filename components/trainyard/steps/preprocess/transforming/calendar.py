"""Dates as tensors: from the text YYYY-MM-DD to days, month, weekday and hour inside the transform graph."""

from __future__ import annotations

import math

import tensorflow as tf

from trainyard.data.values import day_text, days_since_1970
from trainyard.values.patterns import TIME_OF_DAY

MONTHS, WEEKDAYS, HOURS = 13, 8, 25  # id 0 stands for a missing date or time
_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([T ].*)?"
_TIME = ".{10}" + TIME_OF_DAY


class Calendar:
    """A batch of dates (n,): `days` since 1970-01-01 (float64, NaN if missing), `month` 1..12, `weekday` 1..7 from
    Monday and `hour` 1..24, the first of a day is 1 (int64, 0 if missing). What is no day YYYY-MM-DD of the calendar
    counts as missing, and so does an hour that does not follow as THH or THH:MM.
    """

    def __init__(self, texts: tf.Tensor) -> None:
        formed = tf.strings.regex_full_match(texts, _DATE)
        timed = tf.strings.regex_full_match(texts, _TIME)
        hours = _number(tf.where(timed, texts, tf.constant("1970-01-01T00")), 11, 2)
        dates = tf.strings.substr(tf.where(formed, texts, tf.constant("1970-01-01")), 0, 10)
        year, month, day = (_number(dates, start, length) for start, length in ((0, 4), (5, 2), (8, 2)))
        days = days_since_1970(year, month, day)
        written, in_range = day_text(days)
        known = formed & in_range & tf.equal(written, dates)  # 2024-02-30 is no day
        never = tf.zeros_like(hours)
        self.hour = tf.where(known, tf.where(timed, hours + 1, never), never)
        nothing = tf.zeros_like(days)
        self.days = tf.where(known, tf.cast(days, tf.float64), tf.constant(math.nan, tf.float64))
        self.month = tf.where(known, month, nothing)
        self.weekday = tf.where(known, tf.math.floormod(days + 3, 7) + 1, nothing)  # 1970-01-01 was a Thursday


def _number(texts: tf.Tensor, start: int, length: int) -> tf.Tensor:
    return tf.strings.to_number(tf.strings.substr(texts, start, length), tf.int64)
