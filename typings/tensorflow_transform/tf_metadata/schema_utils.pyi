from collections.abc import Mapping

import tensorflow as tf
from google.protobuf.message import Message

def schema_from_feature_spec(feature_spec: Mapping[str, tf.io.FixedLenFeature]) -> Message: ...
