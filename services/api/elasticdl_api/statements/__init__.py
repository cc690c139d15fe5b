"""Statements of SQL that users send: their jobs, their results."""
