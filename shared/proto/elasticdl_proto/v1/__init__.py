"""Generated protocol code, version 1."""
