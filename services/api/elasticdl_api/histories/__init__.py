"""What was, made ready to be shown: series of numbers, the ledger of a job's records."""
