"""Where the agent and the processes of jobs listen: unix sockets whose paths follow from role and index."""

from __future__ import annotations

from pathlib import Path

from elasticdl_core.ports.launcher import Role


def agent_address(run_dir: Path) -> str:
    """The agent's gRPC address."""
    return f"unix:{run_dir}/agent.sock"


def process_address(run_dir: Path, job_id: str, role: Role, index: int) -> str:
    """The gRPC address of a process of a job."""
    return f"unix:{run_dir}/{job_id}/{role}-{index}.sock"
