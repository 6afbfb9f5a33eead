"""Rows of numbers on disk, as CSV and as JSON lines: appended, cut back when a run resumes, never held in memory."""

from __future__ import annotations

import abc
import contextlib
import csv
import io
import json
import math
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

Value = float | int | str | None

# The axis that rows are ordered by, and cut at.
STEP = "global_step"
_BLOCK = 1 << 16


class RowFile(abc.ABC):
    """A text file with one row a line; for one thread at a time.

    Whatever a killed process left of a last line is removed before the first new row.
    """

    def __init__(self, path: str) -> None:
        """Names the file; it is created at the first row.

        Args:
          path: of the file; directories are created when needed.
        """
        self._path = path
        self._file: TextIO | None = None

    @property
    def path(self) -> str:
        """Of the file."""
        return self._path

    def append(self, row: Mapping[str, Value]) -> None:
        """Adds a row; not flushed. None stands for no value. Names have single spaces, as the header is read.

        Raises:
          OSError: the file cannot be written; the next call tries again.
        """
        try:
            if self._file is None:
                self._file = self._open()
            self._write(self._file, {_one_line(name): _plain(value) for name, value in row.items()})
        except OSError:
            self._give_up()
            raise

    def flush(self) -> None:
        """Hands the rows to the operating system; raises OSError as `append`."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError:
                self._give_up()
                raise

    def close(self) -> None:
        """Flushes and closes; a later row opens the file again."""
        file, self._file = self._file, None
        if file is not None:
            self._at_exit.detach()
            file.close()

    def cut(self, column: str, largest: float) -> dict[str, Any]:
        """Removes rows whose `column` is above `largest` or no number, and lines that are no rows.

        Returns:
          the last row that stays, {} when there is none.
        """
        self.close()
        last: dict[str, Any] = {}
        if not os.path.exists(self._path):
            return last
        _remove_torn_line(self._path)
        with _replacement(self._path) as out:
            for line, row in self._lines():
                x = _number(row.get(column)) if row is not None else -math.inf
                if x <= largest:
                    out.write(line)
                    last = row if row is not None else last
        return last

    def _open(self) -> TextIO:
        os.makedirs(os.path.dirname(os.path.abspath(self._path)), exist_ok=True)
        _remove_torn_line(self._path)
        file = open(self._path, "a", encoding="utf-8", newline="")  # noqa: SIM115
        # Python drops what a file holds back when the process ends before somebody closes it.
        self._at_exit = weakref.finalize(self, _close_quietly, file)
        return file

    def _give_up(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._at_exit.detach()
            _close_quietly(file)

    @abc.abstractmethod
    def _write(self, file: TextIO, row: Mapping[str, Value]) -> None:
        """Writes a row to the open file, which a subclass may replace."""

    @abc.abstractmethod
    def _lines(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """The lines worth keeping, each with its row; None for a header."""


class CsvFile(RowFile):
    """Comma-separated values with a header. A column that first appears later is added to the header.

    Rows of before have no value there. The file is then written anew beside the old one, which it replaces at once.
    """

    def __init__(self, path: str) -> None:
        """Names the file; arguments as in `RowFile`."""
        super().__init__(path)
        self._columns: list[str] = []

    def _open(self) -> TextIO:
        file = super()._open()
        self._columns = _header(self._path)
        return file

    def _write(self, file: TextIO, row: Mapping[str, Value]) -> None:
        new = [name for name in row if name not in self._columns]
        if new:
            file = self._widen(new)
        file.write(_csv_line([row.get(name) for name in self._columns]))

    def _widen(self, new: list[str]) -> TextIO:
        self.close()
        columns = [*_header(self._path), *new]
        with _replacement(self._path) as out:
            out.write(_csv_line(columns))
            with _reading(self._path) as old:
                next(old, None)
                for line in old:
                    out.write(line.rstrip("\r\n") + "," * len(new) + "\n" if len(columns) > len(new) else line)
        self._file = self._open()
        return self._file

    def _lines(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        columns = _header(self._path)
        with _reading(self._path) as file:
            header = next(file, None)
            if header is not None:
                yield header, None
            for line in file:
                fields = _fields(line)
                if len(fields) == len(columns):
                    yield line, dict(zip(columns, fields, strict=True))


class JsonLinesFile(RowFile):
    """One JSON object a line; names without a value, and numbers that are not finite, are null."""

    def _write(self, file: TextIO, row: Mapping[str, Value]) -> None:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        file.write(json.dumps(finite, allow_nan=False) + "\n")

    def _lines(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        with _reading(self._path) as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield line, row


def read_csv(path: str) -> Iterator[dict[str, str]]:
    """The rows of a CSV file as text by column, one at a time; none when there is no file; torn rows are left out."""
    if os.path.exists(path):
        for _, row in CsvFile(path)._lines():
            if row is not None:
                yield row


@contextlib.contextmanager
def _replacement(path: str) -> Iterator[TextIO]:
    """A new file that takes the place of `path` when the block ends well, and else leaves it."""
    partial = f"{path}.{os.getpid()}.tmp"
    try:
        with open(partial, "w", encoding="utf-8", newline="") as file:
            yield file
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)


def _close_quietly(file: TextIO) -> None:
    """Closes a file; what cannot be written is lost, and the next row starts after the last whole line."""
    with contextlib.suppress(OSError):
        file.close()


def _remove_torn_line(path: str) -> None:
    """Cuts a file after its last line end."""
    if not os.path.exists(path):
        return
    with open(path, "rb+") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                end = begin + found + 1
                break
            end = begin
        if end < size:
            file.truncate(end)


def _header(path: str) -> list[str]:
    with _reading(path) as file:
        # A quote that damage has opened would take the line end into the name of the last column.
        return [_one_line(name) for name in _fields(file.readline())]


def _reading(path: str) -> TextIO:
    """Opens a file whose damaged bytes do no harm."""
    return open(path, encoding="utf-8", errors="replace", newline="")


def _fields(line: str) -> list[str]:
    """The fields of a line of CSV; none where it is not CSV."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _csv_line(fields: Sequence[Value]) -> str:
    """A line of CSV: None as nothing, and floats with all their digits."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _plain(value: Any) -> Value:
    """A value of Python's own, without line ends; numpy numbers become Python's."""
    if isinstance(value, str):
        return _one_line(value)
    if value is None or type(value) in (int, float):
        return value
    return value.item() if isinstance(value, np.generic) else float(value)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.inf


def finite(value: Any) -> float:
    """`value`, of a file that may be damaged, as a number; 0 where it is none, or not finite."""
    number = _number(value)
    return number if math.isfinite(number) else 0.0
