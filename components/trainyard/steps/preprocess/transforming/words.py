"""The words of a text as tensors, inside the transform graph."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_transform as tft

from trainyard.spec.tables.columns import Text
from trainyard.values.patterns import BETWEEN_WORDS, WORD_OF_ITS_OWN

NO_WORD = 0
"""The id that fills up a row of fewer words."""


def word_ids(texts: tf.Tensor, feature: Text, vocabulary: str) -> tf.Tensor:
    """Return the ids (n, feature.words) int64 of the first words of `texts` (n,): 1 + that of the vocabulary's file."""
    words = _plain_words(texts) if feature.separator is None else _values(texts, feature.separator)
    if feature.ngrams > 1:
        words = tf.strings.ngrams(words, [*range(1, feature.ngrams + 1)])
    ids = tft.compute_and_apply_vocabulary(
        words[:, : feature.words].to_sparse(),
        top_k=feature.vocabulary_size,
        frequency_threshold=feature.min_count,
        num_oov_buckets=feature.oov_buckets,
        vocab_filename=vocabulary,
    )
    return tf.sparse.to_dense(
        tf.SparseTensor(ids.indices, ids.values + 1, [tf.shape(texts, tf.int64)[0], feature.words]), NO_WORD
    )


def _plain_words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Return the words of each text in lower case."""
    cut = tf.strings.regex_replace(tf.strings.lower(texts, encoding="utf-8"), BETWEEN_WORDS, " ")
    return tf.strings.split(tf.strings.regex_replace(cut, WORD_OF_ITS_OWN, r" \0 "))


def _values(texts: tf.Tensor, separator: str) -> tf.RaggedTensor:
    """Split each text at the separators, without surrounding white space and empty parts."""
    cut = tf.strings.split(texts, separator)
    values = cut.with_flat_values(tf.strings.strip(cut.flat_values))
    return tf.ragged.boolean_mask(values, values.with_flat_values(tf.not_equal(values.flat_values, "")))
