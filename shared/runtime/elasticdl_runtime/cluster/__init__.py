"""Files of a local cluster for those that look for it: its directory, its state, its token."""

from elasticdl_runtime.cluster.locate import ClusterAddress, locate

__all__ = ["ClusterAddress", "locate"]
