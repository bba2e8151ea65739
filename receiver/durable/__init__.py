"""The durable receiver: the detector's verdicts, kept in a store through restarts and shared by many processes."""
