"""Writes trained models, so that plain PyTorch loads them."""
