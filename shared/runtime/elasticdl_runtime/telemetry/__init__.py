"""Logs and metrics of every process."""
