"""What a local cluster leaves on disk for whoever wants to find it: its directory, its state, its token."""

from elasticdl_runtime.cluster.locate import ClusterAddress, locate

__all__ = ["ClusterAddress", "locate"]
