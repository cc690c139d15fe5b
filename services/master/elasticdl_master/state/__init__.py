"""The master's decisions, free of input and output: ``(state, event, now) -> (state, instructions)``."""
