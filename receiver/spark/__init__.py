"""Sizing on Spark: the chunks of a log as rows of a DataFrame, the session, and what its failures mean."""
