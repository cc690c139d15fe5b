"""The user's model, optimizer, metrics and callbacks: built, checked, and translated for parameter servers."""
