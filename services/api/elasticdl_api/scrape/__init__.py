"""Metrics for Prometheus: the numbers of every process, collected through the agent, and of the jobs."""
