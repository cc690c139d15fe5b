"""One process of a job: its shim, its environment, its log and its memory, and what a later agent is to know of it.

``shim`` keeps a process tree from outliving its owner; ``child`` runs one command under it; ``journal`` lets a new
agent clean up after the last one.
"""
