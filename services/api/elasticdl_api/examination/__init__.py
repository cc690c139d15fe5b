"""Reads what tenants made, zips and modules, in processes under limits."""
