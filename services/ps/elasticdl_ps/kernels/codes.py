"""The kinds of initial values that kernels know; ``a`` and ``b`` are their two numbers."""

UNIFORM = 0
"""Between ``a`` and ``b``."""
NORMAL = 1
"""Mean ``a``, standard deviation ``b``."""
TRUNCATED_NORMAL = 2
"""As NORMAL, numbers further than two standard deviations from the mean drawn again."""
CONSTANT = 3
"""``a``."""
