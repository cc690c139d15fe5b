"""Histories for display: series of numbers, the ledger of a job's records."""
