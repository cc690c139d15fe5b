"""The training step: which rows it needs, gradients, and training in one process."""
