"""A run's folder: ``<root>/<experiment>/<run_id>/``, made once and never written over.

Request and round lines are appended and on disk before the next request starts; tables and the
manifest are replaced as a whole. This module knows no engine and computes no figure.
"""

import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from autodraft.errors import StoreError
from autodraft.records import RoundRecord
from evaluation.lines import RequestLine, decode_request, encode_request, encode_rounds

REQUESTS_FILE: Final = "requests.jsonl"
ROUNDS_FILE: Final = "rounds.jsonl"
MANIFEST_FILE: Final = "manifest.json"
_HASH_DIGITS: Final = 8


def _store_error(path: Path, error: OSError) -> StoreError:
    reason = error.strerror or str(error)
    return StoreError(
        f"{path} cannot be written ({reason}). Choose a writable folder with --output DIR."
    )


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file as a whole: a reader sees the old or the new one, never half of it.

    Raises:
        StoreError: If it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise _store_error(path, error) from error


def _append(path: Path, data: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _store_error(path, error) from error


def make_run_id(resolved_config: str, day: date) -> str:
    """Return the date and a short hash of the resolved configuration."""
    digest = hashlib.sha256(resolved_config.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{day:%Y%m%d}-{digest}"


def _make_new_folder(parent: Path, name: str) -> Path:
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir():  # a file is in the way, here or further up
                raise
        else:
            return folder
    raise AssertionError("unreachable: the count does not end")


class RunStore:
    """The folder of one run.

    Attributes:
        folder: The folder.
        run_id: Its name.
    """

    def __init__(self, folder: Path) -> None:
        """Use a folder that ``create`` made."""
        self.folder = folder
        self.run_id = folder.name

    @classmethod
    def create(cls, root: Path, experiment: str, run_id: str) -> "RunStore":
        """Make a new folder with empty record files; a taken name gets a number.

        Raises:
            StoreError: If the folder cannot be made or written.
        """
        parent = root / experiment
        try:
            folder = _make_new_folder(parent, run_id)
        except OSError as error:
            raise _store_error(parent / run_id, error) from error
        store = cls(folder)
        for name in (REQUESTS_FILE, ROUNDS_FILE):
            _append(folder / name, b"")
        return store

    def append(self, line: RequestLine, rounds: Sequence[RoundRecord]) -> None:
        """Put one request and its rounds on disk.

        The rounds go first, so that a request's line is the sign that all of it is there.

        Raises:
            StoreError: If they cannot be written.
        """
        if rounds:
            _append(self.folder / ROUNDS_FILE, encode_rounds(self.run_id, line.case, rounds))
        _append(self.folder / REQUESTS_FILE, encode_request(self.run_id, line))

    def read_requests(self) -> list[RequestLine]:
        """Read back all request lines; a last line cut off by a crash is left out.

        Raises:
            StoreError: If the file cannot be read or holds a malformed line.
        """
        path = self.folder / REQUESTS_FILE
        try:
            *whole, _cut_off = path.read_bytes().split(b"\n")
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror}).") from error
        return [
            decode_request(data, f"{path}:{number}") for number, data in enumerate(whole, start=1)
        ]

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run, as a whole.

        Raises:
            StoreError: If it cannot be written.
        """
        write_atomic(self.folder / name, text.encode())

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write ``manifest.json``, as a whole.

        Raises:
            StoreError: If it cannot be written.
        """
        text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False)
        self.write_text(MANIFEST_FILE, text + "\n")

    def write_table(
        self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, object]]
    ) -> None:
        """Write a CSV file, as a whole; a figure that is None becomes an empty field.

        Raises:
            StoreError: If it cannot be written.
        """
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self.write_text(name, buffer.getvalue())

    def discard_if_empty(self) -> None:
        """Remove the folder, and its parent, of a run that recorded no request at all."""
        requests = self.folder / REQUESTS_FILE
        if requests.is_file() and requests.stat().st_size == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # other runs are in there
                self.folder.parent.rmdir()
