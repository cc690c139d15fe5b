"""The agent: owns the processes of jobs on one machine, as the kubelet does on a node.

``servicer`` answers the agent's RPCs; ``table`` decides which processes run (ids, slots, incarnations); ``processes``
runs each under a shim that ends it when the agent is gone; ``zygote`` forks workers from a process that has imported
TensorFlow; ``cluster`` is ``elasticdl up``: all services of one machine under one supervisor.
"""
