"""``scripts/gpu_check.sh`` as a CUDA machine without network runs it, only tiny and on the CPU.

The Python of such a machine is imitated by the one of these tests without its own packages: it sees
torch, transformers, numpy, safetensors and what these need, and nothing else. The wheels that it is
given are packed from the installed packages.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

import pytest
from gpu_checks.replay import SHAPES, load_trace
from gpu_checks.wheels import BASE, GIVEN

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / "scripts" / "gpu_check.sh"
PAGE: Final = ROOT / "docs" / "gpu_check.md"

pytestmark = pytest.mark.timeout(600)


def closure(names: tuple[str, ...]) -> dict[str, Distribution]:
    """Return those packages and all that they need here; extras and ``GIVEN`` are left out."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found or name in GIVEN:  # some releases need some of those, others do not
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # for another platform
            continue
        for requirement in found[name].requires or []:
            if "extra ==" not in requirement:
                waiting.append(re.match(r"[\w.-]+", requirement)[0])  # type: ignore[index]
    return found


def parts_of(package: Distribution) -> set[str]:
    """Return the files and folders of a package in the folder of packages."""
    files = package.files or []
    return {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the interpreter of a machine that has the base packages, and pip."""
    folder = tmp_path_factory.mktemp("machine")
    site = folder / "site"
    site.mkdir()
    for package in (closure(BASE) | closure(("pip", "setuptools"))).values():
        for part in parts_of(package):
            place = Path(str(package.locate_file(part)))
            if not (site / part).exists() and place.exists():
                (site / part).symlink_to(place)
    python = folder / "python"
    # -S: without the folder of packages that belongs to the interpreter.
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{site}"\n'
        f'exec "{sys.executable}" -S "$@"\n'
    )
    python.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack the installed packages of ``GIVEN`` as wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    for name in GIVEN:
        pack(distribution(name), folder)
    return folder


def pack(package: Distribution, folder: Path) -> None:
    description = package.read_text("WHEEL")
    assert description is not None
    tag = re.search(r"^Tag: (\S+)$", description, re.MULTILINE)
    assert tag is not None
    name = package.metadata["Name"].replace("-", "_")
    stem = f"{name}-{package.version}"
    lines = []
    with zipfile.ZipFile(folder / f"{stem}-{tag[1]}.whl", "w") as archive:
        info = ""
        for file in package.files or []:
            if file.parts[0] == ".." or file.suffix == ".pyc":
                continue
            if file.name == "RECORD":
                info = str(file.parent)
            elif file.name not in ("INSTALLER", "REQUESTED", "direct_url.json"):
                content = Path(str(file.locate())).read_bytes()
                archive.writestr(str(file), content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
                lines.append(f"{file},sha256={digest.decode()},{len(content)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,", ""]))


def check(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.fixture(scope="module")
def report(machine: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the tiny check on that machine, with the wheels."""
    out = tmp_path_factory.mktemp("out") / "report.json"
    done = check(
        "--python",
        machine,
        "--wheels",
        wheels,
        "--device",
        "cpu",
        "--tiny",
        "--dtype",
        "float32",
        "--out",
        out,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads(out.read_text())
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_a_machine_without_the_packages_is_told_which_wheels_it_needs(machine: Path) -> None:
    done = check("--python", machine, "--device", "cpu", "--tiny")
    assert done.returncode == 2
    assert done.stdout == ""
    for name in GIVEN:
        assert f"\n  {name}=={distribution(name).version}\n" in done.stderr
    command = next(line for line in done.stderr.splitlines() if "pip download" in line)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"--python-version {version} " in command
    assert "--wheels wheels" in done.stderr


def test_wheels_that_do_not_suffice_are_told(machine: Path, tmp_path: Path) -> None:
    pack(distribution("msgspec"), tmp_path)
    done = check("--python", machine, "--wheels", tmp_path, "--device", "cpu", "--tiny")
    assert done.returncode == 2
    assert f"pip could not install all of that from {tmp_path}" in done.stderr


def test_wrong_usage_is_told(tmp_path: Path) -> None:
    for arguments, told in (
        (("--wheels", tmp_path / "none"), "there is no such folder"),
        (("--python", "no-such-python"), "There is no no-such-python"),
        (("--wheels",), "--wheels needs a value"),
    ):
        done = check(*arguments)
        assert done.returncode == 2
        assert told in done.stderr


def test_with_the_wheels_everything_runs_and_holds(report: dict[str, Any]) -> None:
    assert report["check"] == "gpu"
    assert report["complete"]
    assert report["held"]
    assert report["failed"] == []
    assert report["dropped"] == []
    assert report["device"]["name"] == "cpu"
    assert report["lossless"]["faults"] == 0
    assert {found["family"] for found in report["lossless"]["comparisons"]} == {"llama", "qwen2"}
    assert report["bandwidth_gb_per_s"] > 0
    assert "--compiled yes" in report["compiled_skipped"]


def test_every_cell_of_the_tables_is_there(report: dict[str, Any]) -> None:
    for tables in (report["tables"], *(pair["tables"] for pair in report["more_pairs"])):
        steps, verifications = tables["draft_step_ms"]["eager"], tables["verify_ms"]["eager"]
        assert [(row["width"], row["context"]) for row in steps] == [
            (width, context) for context in (16, 64) for width in (1, 8, 64, 150)
        ]
        assert [(row["rows"], row["nodes"]) for row in verifications[:4]] == [
            (1, 0),
            (8, 7),
            (64, 63),
            (150, 149),
        ]
        assert [row["tokens"] for row in tables["prefill_ms"]["eager"]] == [16, 64]
        assert all(row["ms"] >= row["least_ms"] > 0 for row in [*steps, *verifications])


def test_rounds_accept_what_the_trace_says(report: dict[str, Any]) -> None:
    found, trace = report["round"], load_trace()
    assert found["acceptance"] == "replayed"
    assert found["server_only_tokens_per_s"] > 0
    assert [shape["method"] for shape in found["shapes"]] == [shape.method for shape in SHAPES]
    for shape, figures in zip(SHAPES, found["shapes"], strict=True):
        assert figures["rounds"] > 0
        assert figures["tokens_per_s"] > 0
        # Only an answer's last round, which has few tokens left, may be shorter than recorded.
        assert figures["shorter_trees"] <= figures["answers"]
        first = trace.accepted[shape][: figures["rounds"] - 1]
        least = (sum(first) + figures["rounds"]) / figures["rounds"]
        assert figures["mean_accepted_tokens"] >= least - 1e-3


def test_the_page_names_every_field_of_the_report(report: dict[str, Any]) -> None:
    named = set(re.findall(r"`([a-z0-9_]+)`", PAGE.read_text("utf-8")))

    def fields(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(fields, value))
        if isinstance(value, dict):
            return set(value) | set().union(*map(fields, value.values()))
        return set()

    assert fields(report) <= named


@pytest.mark.heavy
def test_compiled_forwards_hold_too(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = check("--device", "cpu", "--tiny", "--compiled", "yes", "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["compiled_skipped"] is None
    modes = {comparison["mode"] for comparison in found["lossless"]["comparisons"]}
    assert modes == {"eager", "compiled"}
    assert found["tables"]["verify_ms"]["compiled"]
    assert found["tables"]["draft_step_ms"]["compiled"]
