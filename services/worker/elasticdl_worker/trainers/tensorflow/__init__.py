"""Runs Keras models: preparation, compiled steps, training, evaluation and export."""
