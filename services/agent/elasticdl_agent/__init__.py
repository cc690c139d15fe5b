"""The agent: owns the processes of jobs on one machine, as the kubelet does on a node.

``processes`` runs commands, each under a shim that ends it when the agent is gone; ``zygote`` forks workers from a
process that has imported TensorFlow; ``servicer`` answers the agent's RPCs; ``cluster`` is ``elasticdl up``: all
services of one machine under one supervisor.
"""
