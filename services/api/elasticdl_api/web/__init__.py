"""Parts shared by all routes: who calls, JSON bodies, query parameters, problem details, metrics."""
