"""Reports of a worker: accounts of its tasks, progress, losses, traces, failures, and the times of its start."""
