"""Runs a script that has a training loop of its own: its loop takes the part of a replica's forward and backward."""
