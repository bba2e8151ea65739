"""Logs of receipts: one file per format behind one small interface."""
