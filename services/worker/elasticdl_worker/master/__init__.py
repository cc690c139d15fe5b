"""The connection to the master: its client, and the session that the training thread uses."""
