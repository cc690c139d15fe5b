"""The trainer for PyTorch models: everything that touches its tensors."""
