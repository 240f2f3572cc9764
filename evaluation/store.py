"""A run's folder: ``<root>/<experiment>/<run_id>/``, and what stands in it.

Request and round lines are appended and on disk before the next request starts; tables and the
manifest are replaced as a whole. A run that was killed is mended before it goes on. This module
knows no engine and no plan, and computes no figure.
"""

import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from autodraft.errors import StoreError
from autodraft.records import RoundRecord
from evaluation.lines import (
    RequestLine,
    decode_case,
    decode_request,
    encode_request,
    encode_rounds,
)

REQUESTS_FILE: Final = "requests.jsonl"
ROUNDS_FILE: Final = "rounds.jsonl"
TRACE_FILE: Final = "trace.jsonl"
MANIFEST_FILE: Final = "manifest.json"
RESOLVED_FILE: Final = "config.resolved.yaml"
_LOCK_FILE: Final = ".lock"
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


def _read_lines(path: Path) -> tuple[list[bytes], bytes]:
    """Return the whole lines of a file, and what follows the last of them.

    Raises:
        StoreError: If the file cannot be read.
    """
    try:
        *whole, rest = path.read_bytes().split(b"\n")
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}).") from error
    return whole, rest


def _drop_cut_off(path: Path) -> None:
    """Remove a last line that a killed process wrote half of."""
    whole, cut_off = _read_lines(path)
    if cut_off:
        write_atomic(path, b"".join(line + b"\n" for line in whole))


def hash_config(resolved_config: str) -> str:
    """Return a short hash of a configuration, as it stands in the run's id."""
    return hashlib.sha256(resolved_config.encode()).hexdigest()[:_HASH_DIGITS]


def make_run_id(resolved_config: str, day: date) -> str:
    """Return the date and a short hash of the resolved configuration."""
    return f"{day:%Y%m%d}-{hash_config(resolved_config)}"


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
        """Use a folder that `create` made."""
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

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from writing this run; the system undoes it when we die.

        Raises:
            StoreError: If another process has it, or the folder cannot be written.
        """
        path = self.folder / _LOCK_FILE
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise StoreError(
                f"Another process is writing the run {self.folder}. Wait until it has ended, or "
                "begin a run of its own with --fresh."
            ) from None
        except OSError as error:
            raise _store_error(path, error) from error
        try:
            yield
        finally:
            lock.release()

    def mend(self) -> None:
        """Remove what a killed process left half done: cut-off lines, rounds without a request.

        Raises:
            StoreError: If a file cannot be read or written, or holds a malformed line.
        """
        for name in (REQUESTS_FILE, ROUNDS_FILE):
            _append(self.folder / name, b"")  # killed before they were made
        requests, rounds = self.folder / REQUESTS_FILE, self.folder / ROUNDS_FILE
        if (traces := self.folder / TRACE_FILE).exists():
            _drop_cut_off(traces)
        _drop_cut_off(requests)
        answered = {line.case for line in self.read_requests() if line.status == "ok"}
        whole, cut_off = _read_lines(rounds)
        kept = [
            line
            for number, line in enumerate(whole, start=1)
            if decode_case(line, f"{rounds}:{number}") in answered
        ]
        if cut_off or len(kept) < len(whole):
            write_atomic(rounds, b"".join(line + b"\n" for line in kept))

    def append(self, line: RequestLine, rounds: Sequence[RoundRecord]) -> None:
        """Put one request and its rounds on disk.

        The rounds go first, so that a request's line is the sign that all of it is there.

        Raises:
            StoreError: If they cannot be written.
        """
        if rounds:
            _append(self.folder / ROUNDS_FILE, encode_rounds(self.run_id, line.case, rounds))
        _append(self.folder / REQUESTS_FILE, encode_request(self.run_id, line))

    def append_trace(self, line: bytes) -> None:
        """Put one line of the trace on disk.

        Raises:
            StoreError: If it cannot be written.
        """
        _append(self.folder / TRACE_FILE, line)

    def read_requests(self) -> list[RequestLine]:
        """Read back all request lines; a last line cut off by a crash is left out.

        Raises:
            StoreError: If the file cannot be read or holds a malformed line.
        """
        path = self.folder / REQUESTS_FILE
        whole, _ = _read_lines(path)
        return [
            decode_request(data, f"{path}:{number}") for number, data in enumerate(whole, start=1)
        ]

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run, as a whole.

        Raises:
            StoreError: If it cannot be written.
        """
        write_atomic(self.folder / name, text.encode())

    def read_manifest(self) -> dict[str, Any] | None:
        """Return what ``manifest.json`` holds; None where a killed run never wrote it.

        Raises:
            StoreError: If it cannot be read or is malformed.
        """
        path = self.folder / MANIFEST_FILE
        try:
            manifest = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error}).") from error
        if not isinstance(manifest, dict):
            raise StoreError(f"{path} is not a manifest.")
        return manifest

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
