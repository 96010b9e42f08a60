import tensorflow as tf
import tensorflow_transform as tft

NUMBERS = ["trip_miles", "trip_seconds", "fare", "trip_start_hour"]
BUCKETS = {"pickup_latitude": 10, "pickup_longitude": 10}
NAMES = ["payment_type", "company"]
FARE, LABEL = "fare", "tips"


def transformed(name):
    return name + "_xf"


def filled(column):
    """Return a dense column; TFX gives one with missing values as a sparse one."""
    if not isinstance(column, tf.SparseTensor):
        return column
    return tf.sparse.to_dense(column, default_value="" if column.dtype == tf.string else 0)[:, 0]


def preprocessing_fn(inputs):
    outputs = {}
    for name in NUMBERS:
        outputs[transformed(name)] = tft.scale_to_z_score(filled(inputs[name]))
    for name, buckets in BUCKETS.items():
        outputs[transformed(name)] = tft.bucketize(filled(inputs[name]), buckets)
    for name in NAMES:
        outputs[transformed(name)] = tft.compute_and_apply_vocabulary(
            filled(inputs[name]), top_k=1000, num_oov_buckets=10
        )
    fare, tips = filled(inputs[FARE]), filled(inputs[LABEL])
    outputs[transformed(LABEL)] = tf.where(
        tf.math.is_nan(fare), tf.zeros_like(fare, tf.int64), tf.cast(tips > 0.2 * fare, tf.int64)
    )
    return outputs
