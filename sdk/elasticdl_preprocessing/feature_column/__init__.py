"""Feature columns beside TensorFlow's."""
