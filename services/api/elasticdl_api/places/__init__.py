"""Paths that jobs may read and write, and whether what they made is as they made it."""
