"""What a worker reports: accounts of its tasks, progress, losses, traces, failures, and the times of its start."""
