"""Parts shared by the experiments: a real cluster in a temporary directory, and what is read off it."""
