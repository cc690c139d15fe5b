"""The local cluster: Postgres, Redis, api, scheduler and agent of one machine under one supervisor.

``locate()`` finds the cluster that runs here; ``python -m elasticdl_runtime.cluster`` is the supervisor itself.
"""

from elasticdl_runtime.cluster.locate import ClusterAddress, locate

__all__ = ["ClusterAddress", "locate"]
