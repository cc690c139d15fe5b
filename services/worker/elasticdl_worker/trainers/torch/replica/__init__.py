"""The whole model in one member of a group: training by AllReduce."""
