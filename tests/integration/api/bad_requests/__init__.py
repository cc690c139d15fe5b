"""A table of requests that must be refused, and how: data for ``test_bad_requests``."""
