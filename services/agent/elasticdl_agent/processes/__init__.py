"""The processes of jobs: what runs, under which shim, with which environment, logs and memory.

``shim`` keeps a process tree from outliving its owner; ``child`` runs one command under it; ``table`` decides what
runs (ids, slots, incarnations); ``journal`` lets a new agent clean up after the last one.
"""
