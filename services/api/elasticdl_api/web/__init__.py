"""What all routes share: who calls, JSON bodies, query parameters, problem details, metrics."""
