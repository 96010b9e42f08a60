"""The training engines, TensorFlow and JAX: network, loss, optimizer, one step."""
