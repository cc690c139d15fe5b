"""The task queue of one job: a port, a memory adapter for tests and the Redis adapter that production uses."""
