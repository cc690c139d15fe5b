"""A Kubernetes cluster in a thread, for tests: an API server, controllers, and nodes whose pods are processes.

Written from Kubernetes' published API reference and concepts (kubernetes.io/docs/reference), not from our launcher.
"""
