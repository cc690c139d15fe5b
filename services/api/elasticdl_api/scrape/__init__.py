"""What Prometheus is told: the numbers of every process, collected through the agent, and of the jobs."""
