"""The field of every page that leads to the next one."""

from __future__ import annotations

from typing import Any

from pydantic import Field

NEXT_PAGE: Any = Field(description="Give it as page_token to get the next page; null at the end.")
