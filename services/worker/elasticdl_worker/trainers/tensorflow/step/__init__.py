"""Training steps: which rows they need, compiled functions, and what runs them, alone or with parameter servers."""
