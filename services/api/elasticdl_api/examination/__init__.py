"""Reads what tenants made, zips, modules and statements, in processes under limits."""
