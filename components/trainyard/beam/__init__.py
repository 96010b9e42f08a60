"""Beam as the steps use it: where a pipeline runs, its jobs on engines elsewhere, and tasks that workers share."""

from trainyard.importing import without

# Google's clients of what no step reads or writes. Measured: without them and garbage collection, four fifths of the
# time.
with without("google.cloud.pubsub", "google.cloud.bigquery"):
    import apache_beam  # noqa: F401
