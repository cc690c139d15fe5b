"""Trainers: one package for each framework, and beside them what trainers of any framework share."""
