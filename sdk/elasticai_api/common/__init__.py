"""Records and the master, by the original project's names."""
