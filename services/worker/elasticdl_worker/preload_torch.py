"""Imports what every worker of a PyTorch job needs, once, in the zygote that they are forked from.

Importing this must start no thread that outlives a fork, and run nothing of PyTorch: its pools would not survive.
"""

from __future__ import annotations

import importlib

importlib.import_module("elasticdl_worker.trainers.on_servers.engine")
importlib.import_module("elasticdl_worker.trainers.torch.implementation")
# PyTorch itself imports it with the first optimizer of a process, which takes a second.
importlib.import_module("torch._dynamo")
