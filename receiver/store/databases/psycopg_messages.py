"""Statements sent to PostgreSQL together, past psycopg's cursors, which take as much time as all else in a batch of one.

What is borrowed for that from inside psycopg, here alone. Any version may change it, so `pyproject.toml` has an upper
bound, to be raised once the tests have passed with a newer version:

| name | for |
|---|---|
| `generators.execute` | to send what `pgconn.send_query` has, and to fetch all results |
| `Connection.wait` | to wait for it as psycopg does, by its own choice of a selector, and with Ctrl-C |
| `errors.error_from_result` | the error that psycopg's cursors would raise |
| `adapt.Transformer.set_pgresult`, `load_row` | the values that they would give |

`Connection.pgconn`, psycopg's wrapper of libpq, is documented.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PsycopgMessages"]


class PsycopgMessages:
    """Sends statements on one connection of psycopg's, several in one message."""

    def __init__(self, driver: Any) -> None:
        from psycopg import errors, generators
        from psycopg.adapt import Transformer

        self._driver = driver
        self._executing = generators.execute
        self._error_of = errors.error_from_result
        self._transformer = Transformer(driver)

    def send(self, statements: bytes) -> Any:
        """The result of the last statement. None comes after one that fails, whose error is raised."""
        pgconn = self._driver.pgconn
        pgconn.send_query(statements)
        result = self._driver.wait(self._executing(pgconn))[-1]
        if result.error_message:
            raise self._error_of(result)
        return result

    def first_row(self, statements: bytes) -> tuple[Any, ...] | None:
        """The first row that the last statement gives; None if it gives none."""
        result = self.send(statements)
        if not result.ntuples:
            return None
        self._transformer.set_pgresult(result)
        return self._transformer.load_row(0, tuple)
