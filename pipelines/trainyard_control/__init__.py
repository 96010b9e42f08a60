"""The control plane: what a person calls. It imports kfp and trainyard's pure rooms, never TensorFlow or Beam."""
