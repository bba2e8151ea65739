"""Recordings, with stores that have their tables already."""

from tests.made import fresh_postgres_url, made_database, made_file, sqlite_url

__all__ = ["fresh_postgres_url", "made_database", "made_file", "sqlite_url"]
