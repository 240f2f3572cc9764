"""Downloads: what is refused of what an address serves, and which addresses are opened at all."""

import gzip
import io
import re
import urllib.request
from http.client import HTTPMessage
from urllib.error import URLError

import pytest

from autodraft.errors import DataError
from evaluation.datasets import download
from evaluation.datasets.download import PUBLISHED, fetch, open_https
from tests.unit.test_evaluation_datasets_sources import PACKED_URL, URL, Network, pinned


def test_a_download_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MAX_BYTES", 8)
    served = Network({URL: b"123456789"})
    with pytest.raises(DataError, match="more than 8 bytes"):
        fetch(pinned(URL, b"123456789"), served)
    assert fetch(pinned(URL, b"12345678"), Network({URL: b"12345678"})) == b"12345678"


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(download, "MAX_BYTES", 1000)
    bomb = gzip.compress(b"0" * 1001)
    assert len(bomb) < 100
    with pytest.raises(DataError, match="unpacked it has more than 1000 bytes"):
        fetch(pinned(PACKED_URL, bomb), Network({PACKED_URL: bomb}))


@pytest.mark.parametrize("data", [b"no gzip", gzip.compress(b"cut off")[:-4]])
def test_what_cannot_be_unpacked_is_named(data: bytes) -> None:
    with pytest.raises(DataError, match="^here: cannot be unpacked"):
        download.unpack(data, "here")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "file:///etc/hostname", "ftp://127.0.0.1/"])
def test_only_https_is_opened(url: str) -> None:
    with pytest.raises(URLError, match="unknown url type"):
        open_https(url)


def test_no_redirection_leads_away_from_https() -> None:
    request = urllib.request.Request(URL)

    def redirect(to: str) -> urllib.request.Request | None:
        handler = download._HttpsOnly()
        return handler.redirect_request(request, io.BytesIO(), 302, "Found", HTTPMessage(), to)

    with pytest.raises(URLError, match="redirected to http://example.org/, which is not https"):
        redirect("http://example.org/")
    followed = redirect("https://example.org/elsewhere")
    assert followed is not None
    assert followed.full_url == "https://example.org/elsewhere"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_pinned_address_is_https_and_names_a_whole_commit(name: str) -> None:
    file = PUBLISHED[name]
    assert re.match(r"https://[\w.]+/[\w-]+/[\w-]+/[0-9a-f]{40}/", file.url)
    assert re.fullmatch("[0-9a-f]{64}", file.sha256)
    assert re.fullmatch("[0-9a-f]{64}", file.url_sha256)
    # An address that serves the file itself has one checksum, a packed one has two.
    assert (file.sha256 == file.url_sha256) == (not file.url.endswith(".gz"))
