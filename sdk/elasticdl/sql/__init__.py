"""Statements that train, evaluate, explain and predict: ``SELECT ... TO TRAIN ...``, compiled to jobs."""
