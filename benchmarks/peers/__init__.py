"""Alternatives that a user would pick, on the same data and model; each module is a process of its side."""
