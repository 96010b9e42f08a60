"""What every step and the control plane share: pure Python, never TensorFlow or Beam."""
