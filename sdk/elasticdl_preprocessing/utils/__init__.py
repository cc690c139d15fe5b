"""Statistics of features from the environment, and a decorator of models."""
