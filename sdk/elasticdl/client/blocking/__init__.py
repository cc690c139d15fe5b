"""The client for ordinary code, generated from ``elasticdl.client.aio``."""
