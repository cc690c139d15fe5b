"""The page at ``/``: static files, and what they are served with."""
