"""Preprocessing layers, feature columns and statistics at the import paths of the original's package of this name."""
