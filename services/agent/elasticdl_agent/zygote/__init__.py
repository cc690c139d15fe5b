"""Workers that start in milliseconds: forked from a process that has imported what they need."""
