"""The launcher port over the agent's socket: its client, the addresses and the codec of its messages."""
