"""A log replayed in chunks that fit a task, to the same figures as one that is held whole."""
