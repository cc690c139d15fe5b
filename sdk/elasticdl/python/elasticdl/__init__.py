"""Import paths of the original project, under which older model modules find what they use."""
