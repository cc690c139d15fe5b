"""What a worker counts and tells about itself: its tasks' accounts, progress, losses, traces, and how it started."""
