"""Imports what every worker needs, once, in the zygote that workers are forked from; never a user's module.

Importing this must start no thread that outlives a fork, and run nothing of TensorFlow: its pools would not survive.
"""

from __future__ import annotations

import elasticdl_worker.main
import elasticdl_worker.trainers.tensorflow.engine  # noqa: F401
