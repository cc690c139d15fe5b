"""What the experiments share: a real cluster in a temporary directory, and what is read off it."""
