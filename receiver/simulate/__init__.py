"""Replaying a log of receipts through the detector's rules, for every setting at once."""
