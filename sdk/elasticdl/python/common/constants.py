"""Words that older model modules use."""

from __future__ import annotations

from elasticdl.data.odps_access import MaxComputeConfig
from elasticdl.modes import Mode

__all__ = ["MaxComputeConfig", "Mode"]
