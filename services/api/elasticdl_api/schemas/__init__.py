"""Schemas of the public routes, for validation and for OpenAPI."""
