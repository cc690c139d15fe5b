"""Families of optimizers: what each one's hyper-parameters are, and which numbers its kernel needs at a step."""
