"""Parts of ``./dev bench dashboard`` that need no browser."""
