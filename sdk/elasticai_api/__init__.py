"""The names of the original project for training loops of one's own; see ``elasticdl.torch``."""
