"""Question files from the network: published files at pinned addresses, and the news articles.

Whatever comes from an address is compared with a pinned SHA-256 before anybody reads it. This
module decides nothing: whether the network may be used, and where a file is kept, is said in
``sources.py``. It reads no switch from the environment; a proxy that the system names is used as
by every other program.
"""

import gzip
import hashlib
import importlib
import importlib.util
import io
import json
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final, Protocol, cast
from urllib.error import URLError

from autodraft.errors import DataError

MAX_BYTES: Final = 32 * 1024 * 1024
"""Most bytes of a question file, packed or not; the largest published one has 0.7 MiB."""
_TIMEOUT_S: Final = 30.0
_GITHUB: Final = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class PublishedFile:
    """A question file as its authors published it.

    Attributes:
        sha256: SHA-256 of the file, unpacked.
        url: Where it is, at a fixed commit; packed if the address ends in ``.gz``.
        url_sha256: SHA-256 of what the address serves.
    """

    sha256: str
    url: str
    url_sha256: str


def _as_it_is(sha256: str, path: str) -> PublishedFile:
    return PublishedFile(sha256, f"{_GITHUB}/{path}", sha256)


# The one table of published files: name in a folder or in the cache → the file.
PUBLISHED: Final[dict[str, PublishedFile]] = {
    "mt_bench.jsonl": _as_it_is(
        "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        "lm-sys/FastChat/0e6d3e4beaab66f4d3f93db72541a4abab8af28d/"
        "fastchat/llm_judge/data/mt_bench/question.jsonl",
    ),
    "humaneval.jsonl": PublishedFile(
        sha256="1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2",
        url=f"{_GITHUB}/openai/human-eval/6d43fb980f9fee3c892a914eda09951f772ad10d/"
        "data/HumanEval.jsonl.gz",
        url_sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
    ),
    "spec_bench.jsonl": _as_it_is(
        "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
        "hemingkx/Spec-Bench/fd2c1cd7d2201ef71db4c5f4e455008f017967bf/"
        "data/spec_bench/question.jsonl",
    ),
    "gsm8k.jsonl": _as_it_is(
        "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        "openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/"
        "grade_school_math/data/test.jsonl",
    ),
}


class Response(Protocol):
    """What an address serves."""

    def read(self, amount: int, /) -> bytes:
        """Return at most so many bytes."""
        ...


OpenUrl = Callable[[str], AbstractContextManager[Response]]


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Follows no redirection to an address that is not encrypted."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://"):
            raise URLError(f"redirected to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_https(url: str) -> AbstractContextManager[Response]:
    """Open an https address.

    Raises:
        URLError: If it is no https address, or leads to one that is not, or cannot be reached.
    """
    opener = urllib.request.OpenerDirector()  # build_opener would add http, ftp and file
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        _HttpsOnly(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return cast("AbstractContextManager[Response]", opener.open(url, timeout=_TIMEOUT_S))


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def unpack(data: bytes, where: str) -> bytes:
    """Unpack gzip.

    Raises:
        DataError: If the bytes are no gzip, or become more than ``MAX_BYTES``.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where}: cannot be unpacked ({error}).") from error
    if len(unpacked) > MAX_BYTES:
        raise DataError(f"{where}: unpacked it has more than {MAX_BYTES} bytes.")
    return unpacked


def fetch(published: PublishedFile, open_url: OpenUrl = open_https) -> bytes:
    """Download a published file.

    Args:
        published: The file.
        open_url: Opens an address.

    Returns:
        The file, unpacked; its SHA-256 is the pinned one.

    Raises:
        DataError: If the address cannot be read, or serves something else.
    """
    url = published.url
    try:
        with open_url(url) as response:
            data = _read(response)
    except (OSError, HTTPException) as error:
        raise DataError(f"{url}: {error}.") from error
    if len(data) > MAX_BYTES:
        raise DataError(f"{url}: more than {MAX_BYTES} bytes.")
    if (found := sha256_of(data)) != published.url_sha256:
        raise DataError(
            f"{url}: its SHA-256 is {found}, and {published.url_sha256} was expected: it is not "
            "the published file, and was not kept."
        )
    return unpack(data, url) if url.endswith(".gz") else data


def _read(response: Response) -> bytes:
    """Read to the end, or one byte more than is allowed."""
    data = bytearray()
    while len(data) <= MAX_BYTES and (part := response.read(MAX_BYTES + 1 - len(data))):
        data += part
    return bytes(data)


# ------------------------------------------------------------------------------------ news articles

ARTICLES_FILE: Final = "cnn_dailymail.jsonl"
_ARTICLES_LIBRARY: Final = "datasets"
_ARTICLES_NAME: Final = "abisee/cnn_dailymail"
_ARTICLES_VERSION: Final = "3.0.0"
_ARTICLES_SPLIT: Final = "test"
_ARTICLES_REVISION: Final = "96df5e686bee6baa90b8bee7c28b81fa3fa6223d"
ARTICLES: Final = (
    f"{_ARTICLES_NAME} {_ARTICLES_VERSION}, split {_ARTICLES_SPLIT}, revision {_ARTICLES_REVISION}"
)
"""What ``fetch_articles`` gets, in words."""


def can_fetch_articles() -> bool:
    """Return whether the library ``datasets`` is installed; it is not imported."""
    spec = importlib.util.find_spec(_ARTICLES_LIBRARY)
    # Any folder of that name on the path is found as well, without an origin.
    return spec is not None and spec.origin is not None


def fetch_articles() -> bytes:
    """Download the test split of CNN/DailyMail through the library ``datasets``.

    Returns:
        A question file of the FastChat form, one turn each, asked as Spec-Bench asks: ``Summarize:
        `` and the article as it is. Pure ASCII, so that the same articles are the same bytes.

    Raises:
        DataError: If the library cannot get or make the articles.
    """
    library: Any = importlib.import_module(_ARTICLES_LIBRARY)
    try:
        articles = library.load_dataset(
            _ARTICLES_NAME,
            _ARTICLES_VERSION,
            split=_ARTICLES_SPLIT,
            revision=_ARTICLES_REVISION,
        )
        lines = [json.dumps(_as_row(article)) + "\n" for article in articles]
    except (OSError, ValueError, RuntimeError, library.exceptions.DatasetsError) as error:
        raise DataError(f"{ARTICLES}: {error}.") from error
    except KeyError as error:
        raise DataError(f"{ARTICLES}: an article has no field {error}.") from error
    return "".join(lines).encode("ascii")


def _as_row(article: dict[str, str]) -> dict[str, Any]:
    return {
        "question_id": article["id"],
        "category": "summarization",
        "turns": [f"Summarize: {article['article']}"],
        "reference": [article["highlights"]],
    }
