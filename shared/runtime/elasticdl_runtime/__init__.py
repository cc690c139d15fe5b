"""Plumbing that every process of ElasticDL shares: settings, tokens, RPC, launching, logs."""
