"""Ports: what the core and the services need from the outside world, as protocols."""
