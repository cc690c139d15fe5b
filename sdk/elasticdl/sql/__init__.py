"""Statements that train, evaluate and predict: ``SELECT ... TO TRAIN ...``, compiled to jobs like all others."""
