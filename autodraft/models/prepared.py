"""Folders of files that are prepared once and verified at every use.

A prepared folder appears complete or not at all, is written by one process at a time, and carries
a manifest with the size and SHA-256 of each of its files. This module knows no models: a recipe
says what to write.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from autodraft.errors import ModelLoadError

MANIFEST_NAME: Final = "manifest.json"
_LOCK_TIMEOUT_S: Final = 900.0
_CHUNK_BYTES: Final = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """How to make one prepared folder.

    Attributes:
        name: Name of what it makes; part of the folder's name.
        version: To be raised whenever the same source would give other files.
        source_sha256: Checksum of what the files are made from.
        write: Writes the files into the empty folder it is given.
    """

    name: str
    version: int
    source_sha256: str
    write: Callable[[Path], None]

    @property
    def folder_name(self) -> str:
        """Name of the prepared folder."""
        return f"{self.name}-r{self.version}"


class FileEntry(msgspec.Struct, frozen=True):
    """Size and checksum of one file."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a prepared folder must hold, and what it was made from."""

    name: str
    version: int
    source_sha256: str
    files: dict[str, FileEntry]


def ensure_prepared(recipe: Recipe, root: Path) -> Path:
    """Return the verified folder of a recipe; prepare it first where it is missing or damaged.

    Processes that ask for the same folder at once prepare it once; the others wait.

    Raises:
        ModelLoadError: If the folder cannot be written, or another process does not finish.
    """
    folder = root / recipe.folder_name
    if find_fault(recipe, root) is None:
        return folder
    lock_path = root / f".{recipe.folder_name}.lock"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(lock_path, timeout=_LOCK_TIMEOUT_S):
            fault = find_fault(recipe, root)  # another process may have mended it meanwhile
            if fault is None:
                return folder
            if folder.exists():
                _log.warning("%s is damaged (%s); preparing it again", folder, fault)
            else:
                _log.info("preparing %s once", folder)
            _prepare(recipe, folder)
    except Timeout as error:
        raise ModelLoadError(
            f"Another process holds {lock_path} for more than {_LOCK_TIMEOUT_S:.0f} s, so {folder} "
            "is not ready. End that process, or set AUTODRAFT_CACHE_DIR to another folder."
        ) from error
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(
            f"The model {recipe.name} cannot be prepared in {folder} ({error}). Make room or mend "
            "the permissions there, or set AUTODRAFT_CACHE_DIR to a writable folder."
        ) from error
    return folder


def find_fault(recipe: Recipe, root: Path) -> str | None:
    """Say what is wrong with a prepared folder, or None when every file is as it was written."""
    folder = root / recipe.folder_name
    try:
        manifest = read_manifest(folder)
        if (manifest.name, manifest.version, manifest.source_sha256) != (
            recipe.name,
            recipe.version,
            recipe.source_sha256,
        ):
            return f"{MANIFEST_NAME} is of another recipe"
        for name, entry in manifest.files.items():
            if (folder / name).stat().st_size != entry.bytes:
                return f"{name} has not its size of {entry.bytes} bytes"
            if sha256_of(folder / name) != entry.sha256:
                return f"{name} has another checksum"
    except msgspec.DecodeError:
        return f"{MANIFEST_NAME} is malformed"
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    return None


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a prepared folder.

    Raises:
        OSError: If it cannot be read.
        msgspec.DecodeError: If it is malformed.
    """
    return msgspec.json.decode((folder / MANIFEST_NAME).read_bytes(), type=Manifest)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def edit_json(
    path: Path, change: Mapping[str, Any] = MappingProxyType({}), remove: tuple[str, ...] = ()
) -> None:
    """Set and remove keys of a JSON object in a file."""
    values = json.loads(path.read_text(encoding="utf-8")) | dict(change)
    kept = {key: value for key, value in values.items() if key not in remove}
    path.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _prepare(recipe: Recipe, folder: Path) -> None:
    """Write a folder beside its place and move it there. The caller holds the lock."""
    fresh = folder.with_name(f".{folder.name}.new")
    stale = folder.with_name(f".{folder.name}.old")
    _remove(fresh)  # left by a preparation that was killed
    _remove(stale)
    fresh.mkdir()
    try:
        recipe.write(fresh)
        _write_manifest(recipe, fresh)
        for path in (*fresh.iterdir(), fresh):
            _flush_to_disk(path)
        if folder.exists():
            folder.rename(stale)
        fresh.rename(folder)
        _flush_to_disk(folder.parent)
    finally:
        _remove(fresh)
        _remove(stale)


def _write_manifest(recipe: Recipe, folder: Path) -> None:
    files = {
        path.name: FileEntry(bytes=path.stat().st_size, sha256=sha256_of(path))
        for path in sorted(folder.iterdir())
    }
    manifest = Manifest(
        name=recipe.name, version=recipe.version, source_sha256=recipe.source_sha256, files=files
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (folder / MANIFEST_NAME).write_bytes(text + b"\n")


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
