"""What an engine computes, in TensorFlow or JAX: network, loss, optimizer, one step."""
