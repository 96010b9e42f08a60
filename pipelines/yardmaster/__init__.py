"""The control plane: what a person calls. It imports kfp and `trainyard.core`, never TensorFlow or Beam."""
