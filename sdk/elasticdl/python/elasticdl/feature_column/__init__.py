"""Feature columns at the original project's import path."""
