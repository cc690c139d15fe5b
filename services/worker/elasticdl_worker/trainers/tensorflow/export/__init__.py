"""Models that plain Keras and TensorFlow load, written from a run or from a checkpoint."""
