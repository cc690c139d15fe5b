"""Names and addresses of machines."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host: ``localhost``, or an address of loopback, also in brackets."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether it is an address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
