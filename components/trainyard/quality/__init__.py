"""What data are like before anything is trained from them, without TensorFlow or Beam."""
