"""What a user would otherwise pick, on the same data and model; each module is a process of its side."""
