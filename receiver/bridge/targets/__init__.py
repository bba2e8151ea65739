"""Where a bridge hands messages to: one file per kind, behind `target.Target`."""
