"""Words that older model modules use."""

from __future__ import annotations

from elasticdl.modes import Mode

__all__ = ["MaxComputeConfig", "Mode"]


class MaxComputeConfig:
    """Names of the environment variables that say how to reach MaxCompute."""

    PROJECT_NAME = "MAXCOMPUTE_PROJECT"
    ACCESS_ID = "MAXCOMPUTE_AK"
    ACCESS_KEY = "MAXCOMPUTE_SK"
    ENDPOINT = "MAXCOMPUTE_ENDPOINT"
    TUNNEL_ENDPOINT = "MAXCOMPUTE_TUNNEL_ENDPOINT"
