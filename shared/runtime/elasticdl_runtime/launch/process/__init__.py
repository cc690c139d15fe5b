"""The process launcher: one agent per machine owns the processes of jobs, as the kubelet does on a node.

``shim`` keeps a process tree from outliving its owner; ``child`` runs one command under it; ``table`` decides what
runs (ids, slots, incarnations); ``servicer`` is the agent's door; ``client`` is the adapter that services use.
"""
