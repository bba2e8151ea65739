"""CSV with a header, separated by commas, quoted with `"`.

Two readers give the same rows. Arrow's reader reads blocks in which each quote clearly opens or closes a field. Python's csv
module reads all other blocks, and those that Arrow's reader refuses: it is strict about quotes, and shows the physical line of
each row. A test checks that both agree.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from receiver.errors import LogFormatError
from receiver.logs.columns import COLUMNS, LogBatch
from receiver.logs.options import ReadOptions, fields_of
from receiver.logs.rows import BARE_RETURN, BatchMaker, RawRows, Unreadable, not_utf8, unreadable_row
from receiver.logs.source import BOM, Block, LogSource, blocks_of

_MAX_ROW_BYTES = 64 << 20
"""A longer row counts as a quote that was never closed: the row would swallow the rest of the log."""
_BEFORE_FIELD = np.frombuffer(b",\n", dtype=np.uint8)
_AFTER_FIELD = np.frombuffer(b",\r\n", dtype=np.uint8)
_WORDS = pa.dictionary(pa.int32(), pa.string())


def read_csv(source: LogSource, options: ReadOptions) -> Iterator[LogBatch]:
    """Rows of a CSV log. A row with another number of fields than the header is unreadable."""
    # The limit is global to the process. Its default, 128 KB, would refuse rows that Arrow's reader accepts.
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_ROW_BYTES))
    lines = _Lines(blocks_of(source))
    header = _header(lines, source.name)
    table = _Table(len(header), fields_of(header, options, source.name))
    batches = BatchMaker(source.name, options)
    yield batches.batch(table.raw([], []))  # so that the columns are known even for a log without rows
    while (block := lines.next_block()) is not None:
        raw = table.from_plain(block) if _is_plain(block.data) else None
        if raw is None:
            lines.put_back(block)
            raw = table.from_exact(lines)
        yield batches.batch(raw)


def _header(lines: _Lines, name: str) -> Sequence[str]:
    while (block := lines.next_block()) is not None:
        lines.put_back(block)
        for line, row in _exact_rows(lines):
            if isinstance(row, str):
                raise unreadable_row(name, line, row)
            return row
    raise LogFormatError(name, "no header: nothing but blank lines", hint="the first row must name the columns")


class _Lines(Iterator[str]):
    """Physical lines for the csv module, which can be given back when a row turns out to be bad."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._ahead: deque[bytes] = deque()
        self._row: list[bytes] = []
        self._row_bytes = 0
        self.next_line = 1
        self.blocks_taken = 0

    def next_block(self) -> Block | None:
        """The lines left of a block, otherwise the next block; None at the end of the log."""
        if not self._ahead:
            return next(self._blocks, None)
        rest = Block(b"".join(self._ahead), self.next_line)
        self._ahead.clear()
        return rest

    def put_back(self, block: Block) -> None:
        """Make the lines of a block the next ones."""
        self._ahead.extend(io.BytesIO(block.data))  # splits only at "\n", unlike splitlines
        self.next_line = block.line
        self.blocks_taken += 1

    def begin_row(self) -> bool:
        """Begin a new row: the row before can't be given back any more. Returns whether lines are left of the block."""
        self._row.clear()
        self._row_bytes = 0
        return bool(self._ahead)

    def unread_row(self) -> None:
        """Make all lines of the row but the first come again, so that an unclosed quote doesn't swallow other rows."""
        self._ahead.extendleft(reversed(self._row[1:]))
        self.next_line -= len(self._row) - 1

    def __next__(self) -> str:
        if not self._ahead:
            block = next(self._blocks, None)
            if block is None:
                raise StopIteration
            self.put_back(block)
        line = self._ahead.popleft()
        self.next_line += 1
        self._row.append(line)
        self._row_bytes += len(line)
        if self._row_bytes > _MAX_ROW_BYTES:
            raise csv.Error(f"a row of more than {_MAX_ROW_BYTES >> 20} MB, perhaps a quote that is never closed")
        return line.decode()


def _exact_rows(lines: _Lines) -> Iterator[tuple[int, list[str] | str]]:
    """The rows up to the first that ends with a block: for each its physical line, and its fields or the problem with it."""
    reader = csv.reader(lines, strict=True)
    while lines.begin_row():
        line = lines.next_line
        try:
            row = next(reader)
        except csv.Error as error:
            lines.unread_row()
            yield line, BARE_RETURN if "new-line character" in str(error) else f"not a row of CSV: {error}"
        except UnicodeDecodeError as error:
            lines.unread_row()
            yield line, not_utf8(error)
        else:
            if row:
                yield line, row


class _Table:
    """The shape of the file: the number of fields in a row, and the columns that they hold."""

    def __init__(self, width: int, fields: dict[str, int]) -> None:
        self._width = width
        self._fields = fields
        self._convert = arrow_csv.ConvertOptions(
            column_types={
                str(field): _WORDS if COLUMNS[column].has_few_values else pa.string()
                for column, field in fields.items()
            },
            include_columns=sorted({str(field) for field in fields.values()}),
            null_values=[],
            strings_can_be_null=False,
        )

    def raw(self, rows: list[list[str]], line_numbers: list[int], unreadable: Sequence[Unreadable] = ()) -> RawRows:
        columns = {
            column: pa.array([row[field] for row in rows], pa.string()) for column, field in self._fields.items()
        }
        return RawRows(columns, line_numbers.__getitem__, list(unreadable))

    def from_exact(self, lines: _Lines) -> RawRows:
        """The rows of a block, by the csv module. The last row may extend into the next block."""
        rows, line_numbers, unreadable = [], [], []
        blocks_taken = lines.blocks_taken
        for line, row in _exact_rows(lines):
            if isinstance(row, str):
                unreadable.append(Unreadable(line, row))
            elif len(row) != self._width:
                unreadable.append(Unreadable(line, f"{len(row)} fields, expected {self._width} as in the header"))
            else:
                rows.append(row)
                line_numbers.append(line)
            if lines.blocks_taken != blocks_taken:
                break
        return self.raw(rows, line_numbers, unreadable)

    def from_plain(self, block: Block) -> RawRows | None:
        """The rows of a plain block, by Arrow's reader; None if it refuses the block, or the block isn't UTF-8."""
        try:
            block.data.isascii() or block.data.decode()
            table = arrow_csv.read_csv(
                pa.py_buffer(block.data),
                # Arrow before 25 aborts a process that ends while Arrow's threads still start; one block needs none.
                arrow_csv.ReadOptions(
                    column_names=[str(field) for field in range(self._width)],
                    block_size=len(block.data) + 1,
                    use_threads=False,
                ),
                arrow_csv.ParseOptions(),
                self._convert,
            )
        except (UnicodeDecodeError, pa.ArrowInvalid):
            return None
        columns = {column: table.column(str(field)).combine_chunks() for column, field in self._fields.items()}
        return RawRows(columns, lambda row: _line_numbers(block)[row])


@lru_cache(maxsize=1)
def _line_numbers(block: Block) -> list[int]:
    return [number for number, line in enumerate(block.data.split(b"\n"), block.line) if line not in {b"", b"\r"}]


def _is_plain(data: bytes) -> bool:
    """Whether each quote opens a field at its start or closes it at its end, on the same line.

    Proof by induction: before the first quote nothing is quoted, so a quote that begins a field opens it. Up to the next quote
    all is the field's text, and that quote, before a comma or the line's end, closes it. A `""` inside a field, a quote in an
    unquoted field and a line break in quotes each violate one of the conditions.
    """
    if data.startswith(BOM):
        return False  # Arrow's reader would drop it as the mark of a file; here it is the beginning of a field
    if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
        return False
    if b'"' not in data:
        return True
    letters = np.frombuffer(b"\n" + data + b"\n", dtype=np.uint8)
    marks = np.flatnonzero((letters == ord('"')) | (letters == ord("\n")))
    quotes = np.flatnonzero(letters[marks] == ord('"'))
    if len(quotes) % 2 or (quotes[1::2] != quotes[::2] + 1).any():
        return False  # a line break comes between a quote that opens and the one that closes
    before, after = letters[marks[quotes[::2]] - 1], letters[marks[quotes[1::2]] + 1]
    return bool(np.isin(before, _BEFORE_FIELD).all() and np.isin(after, _AFTER_FIELD).all())
