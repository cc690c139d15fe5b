"""PyTorch, by the original project's names."""
