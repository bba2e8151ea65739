"""A log to size windows from, and programs to watch."""
