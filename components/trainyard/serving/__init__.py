"""Answers requests with a pushed model over HTTP and gRPC, as TensorFlow Serving and KServe do."""
