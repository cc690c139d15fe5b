"""The user's model: built, named, its embeddings, optimizer, metrics and callbacks."""
