"""Imports what every worker needs, once, in the zygote that workers are forked from; never a user's module.

Importing this must start no thread that outlives a fork, and run nothing of TensorFlow: its pools would not survive.
"""

from __future__ import annotations

import importlib

from elasticdl_worker import framework_environment

framework_environment.prepare()  # to import this module is all that the zygote does, so this is its main
importlib.import_module("elasticdl_worker.trainers.on_servers.engine")
importlib.import_module("elasticdl_worker.trainers.tensorflow.implementation")
