"""Folders and the access token, in an environment made for each test."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from autodraft import settings
from autodraft.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTODRAFT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("AUTODRAFT_TOKEN", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("variable", "function"),
    [
        ("AUTODRAFT_CACHE_DIR", settings.cache_dir),
        ("AUTODRAFT_DATA_DIR", settings.data_dir),
        ("AUTODRAFT_CONFIG_DIR", settings.config_dir),
        ("AUTODRAFT_BENCH_DIR", settings.bench_dir),
    ],
)
def test_a_variable_names_its_folder(
    variable: str, function: Callable[[], Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "~/somewhere")
    assert function() == Path.home() / "somewhere"
    monkeypatch.setenv(variable, "relative")
    assert function() == Path.cwd() / "relative"


@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
def test_an_unset_or_empty_variable_leaves_the_default(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CACHE", "DATA", "CONFIG", "BENCH"):
        if value is None:
            monkeypatch.delenv(f"AUTODRAFT_{name}_DIR", raising=False)
        else:
            monkeypatch.setenv(f"AUTODRAFT_{name}_DIR", value)
    folders = (settings.cache_dir(), settings.data_dir(), settings.config_dir())
    assert all(folder.name == "autodraft" and folder.is_absolute() for folder in folders)
    assert settings.bench_dir() is None


def test_there_is_no_token_until_one_is_made() -> None:
    assert settings.find_token() is None
    assert not settings.token_path().exists()


def test_the_first_start_makes_a_token_that_only_its_user_reads() -> None:
    token = settings.ensure_token()
    assert len(token) >= 43  # 32 bytes in base 64
    assert stat.S_IMODE(settings.token_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(settings.config_dir().stat().st_mode) & 0o077 == 0
    assert settings.find_token() == settings.ensure_token() == token


def test_two_users_get_two_tokens(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = settings.ensure_token()
    monkeypatch.setenv("AUTODRAFT_CONFIG_DIR", str(home / "other"))
    assert settings.ensure_token() != first


def test_the_variable_wins_over_the_file_and_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTODRAFT_TOKEN", " from-variable\n")
    assert settings.ensure_token() == "from-variable"
    assert not settings.token_path().exists()


def test_another_variable_can_hold_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "mine")
    assert settings.find_token("MY_TOKEN") == "mine"
    assert settings.find_token() is None


def test_an_empty_token_file_is_filled() -> None:
    settings.config_dir().mkdir()
    settings.token_path().write_text("\n")
    assert settings.find_token() is None
    token = settings.ensure_token()
    assert settings.token_path().read_text() == token + "\n"


def test_an_unreadable_token_file_is_told_with_its_path() -> None:
    settings.token_path().mkdir(parents=True)
    with pytest.raises(ConfigError, match="or set AUTODRAFT_TOKEN") as caught:
        settings.find_token()
    assert str(settings.token_path()) in str(caught.value)


def test_an_unwritable_config_folder_is_told_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigError, match="Set AUTODRAFT_CONFIG_DIR to a writable folder"):
        settings.ensure_token()


def test_the_words_for_the_token_name_its_place_and_not_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert settings.token_origin() == str(settings.token_path())
    monkeypatch.setenv("AUTODRAFT_TOKEN", "secret")
    assert settings.token_origin() == "AUTODRAFT_TOKEN"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"])
def test_a_server_on_this_machine_is_shown_the_token_file(host: str) -> None:
    token = settings.ensure_token()
    assert settings.client_token(host) == token


@pytest.mark.parametrize(
    "host", ["192.168.0.1", "example.org", "localhost.example.org", "0.0.0.0", "::2"]
)
def test_the_token_file_is_never_sent_to_another_machine(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ensure_token()
    assert settings.client_token(host) is None
    monkeypatch.setenv("MY_TOKEN", "for-that-server\n")
    assert settings.client_token(host, "MY_TOKEN") == "for-that-server"
