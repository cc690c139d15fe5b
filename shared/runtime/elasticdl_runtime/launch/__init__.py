"""Launchers: what starts and stops the processes of jobs."""
