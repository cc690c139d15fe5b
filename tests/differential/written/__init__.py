"""Modules as people write them, each in a style of its own, that are trained with the plain framework as well."""
