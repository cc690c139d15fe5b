"""This worker's standing with its master: the client, and the session that the training thread speaks through."""
