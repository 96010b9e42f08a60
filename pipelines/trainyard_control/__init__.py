"""The control plane, which people call. It imports kfp and the pure packages of trainyard, never TensorFlow or Beam."""
