"""The command ``profile``, and the server's options for its own profile."""

from pathlib import Path
from typing import Any

import pytest

from autodraft import cli

PAIR = ["--target-model", "a/target", "--draft-model", "a/draft"]


class FakeEngine:
    """Keeps what it was made with; its report says whether it was refreshed."""

    made: dict[str, Any]

    def __init__(self, **options: Any) -> None:
        FakeEngine.made = options

    def __enter__(self) -> "FakeEngine":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def profile(self, *, refresh: bool) -> str:
        return f"refreshed: {refresh}"


@pytest.mark.parametrize(
    ("options", "report"), [([], "refreshed: False"), (["--refresh"], "refreshed: True")]
)
def test_profile_prints_what_the_engine_reports(
    options: list[str],
    report: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("autodraft.api.Autodraft", FakeEngine)
    place = ["--target-host", "there", "--target-port", "1234", "--server-name", "mine"]
    how = ["--device-map", "cpu", "--dtype", "float32", "--draft-quantization", "8bit"]
    assert cli.main(["profile", *PAIR, *place, *how, *options]) == 0
    assert capsys.readouterr().out == report + "\n"
    assert FakeEngine.made == {
        "draft_model": "a/draft",
        "target_model": "a/target",
        "draft_quantization": "8bit",
        "target_quantization": None,
        "target_host": "there",
        "target_port": 1234,
        "server_name": "mine",
        "device_map": "cpu",
        "dtype": "float32",
    }


def test_profile_needs_both_models(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["profile", "--target-model", "a/target"])
    assert stop.value.code == 2
    assert "--draft-model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "profiles"),
    [
        ([], False),
        (["--enable-auto-target-profile"], True),
        (["--disable-auto-target-profile"], False),
    ],
)
def test_a_server_profiles_where_it_is_told_to_and_keeps_it_with_the_users_data(
    options: list[str], profiles: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("autodraft.api.serve_target", lambda *_, **options: given.update(options))
    monkeypatch.setenv("AUTODRAFT_DATA_DIR", str(tmp_path))
    assert cli.main(["target", *options]) == 0
    assert given["auto_target_profile"] is profiles
    assert given["profile_dir"] == tmp_path / "profile"


def test_a_server_cannot_do_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["target", "--enable-auto-target-profile", "--disable-auto-target-profile"])
    assert stop.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
