"""What travels over the public routes, for validation and for OpenAPI."""
