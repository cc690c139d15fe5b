"""Data readers at their original import paths."""
