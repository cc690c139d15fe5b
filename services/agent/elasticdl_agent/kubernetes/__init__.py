"""The Kubernetes launcher: processes of jobs are pods, and the API server holds all that is known of them."""
