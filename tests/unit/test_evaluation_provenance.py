"""What makes a run traceable, and how the harness starts without its extra packages."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

import evaluation.__main__
from evaluation.provenance import git_state, provenance


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_a_commit_is_dirty_as_soon_as_a_file_differs(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "first")
    clean = git_state(tmp_path)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "new.py").write_text("")
    assert git_state(tmp_path) == {"commit": clean["commit"], "dirty": True}


def test_without_a_git_checkout_the_commit_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) == {"commit": None, "dirty": None}


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert git_state() == {"commit": None, "dirty": None}


def test_the_provenance_is_plain_json_with_the_command_line() -> None:
    found = provenance(["python", "-m", "evaluation", "run", "x.xml"])
    assert json.loads(json.dumps(found)) == found
    assert found["argv"][-1] == "x.xml"
    assert found["versions"]["msgspec"]
    assert found["versions"].keys() >= {"python", "torch", "transformers", "autodraft-sd"}


def test_a_missing_extra_package_is_one_line_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert evaluation.__main__.main() == 1
    error = capsys.readouterr().err
    assert "matplotlib and rich" in error
    assert 'pip install -e ".[harness]"' in error
