"""Cluster-wide scheduling as pure functions: a snapshot goes in, a plan comes out."""
