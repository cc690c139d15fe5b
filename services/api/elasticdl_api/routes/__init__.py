"""The HTTP routes: doors, not rooms. They validate, call, and translate the answer."""
