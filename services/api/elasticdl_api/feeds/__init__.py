"""Live streams: what changed is read once, whoever watches, and fanned out to bounded queues."""
