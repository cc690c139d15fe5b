"""Parameters in memory: tables, dense parameters, and the partition that holds both. No network, no event loop."""
