"""Training measured end to end: the data, the model, our cluster, and processes of other systems, in turns."""
