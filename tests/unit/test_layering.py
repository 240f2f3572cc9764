"""Who may import whom (the table of the design), read out of the syntax trees.

Imports inside functions count as much as those at the top. The checker itself is tried on a toy
tree with planted violations.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Arrows point down: a lower line never imports a higher one.
LINES = (
    {"evaluation", "chat_ui"},
    {"api", "cli", "deploy", "doctor"},
    {"engine", "simulate"},
    {"models", "transport", "meters", "profiling", "policy", "config_io"},
    {"tree", "decoding", "cost", "protocol", "config"},
    {"errors", "records", "units", "settings"},
)
LINE_OF = {unit: number for number, line in enumerate(LINES) for unit in line}
# The imports within one line that are meant: the commands are faces of the library, every module
# may raise the errors, and policies know latency tables.
SIDEWAYS = {
    ("cli", "api"),
    ("cli", "doctor"),
    ("deploy", "api"),
    ("settings", "errors"),
    ("policy", "profiling"),
}
ALIASES = {"__main__": "cli"}
FACE = "autodraft"  # the package itself: its public names
PUBLIC = {FACE, "config", "config_io", "records", "cost", "simulate", "errors", "settings"}
USERS_OF_THE_FACE = {"evaluation", "chat_ui", "cli", "deploy"}

PURE = {"tree", "policy", "cost", "protocol", "transport", "decoding", "config", "config_io"}
BASE = {"errors", "records", "units", "settings"}
SOCKETS = {"socket", "asyncio", "websockets", "ssl", "http"}
CLOCKS = {"time", "datetime"}
FORBIDDEN = {
    **{unit: {"torch"} for unit in PURE | BASE},
    "tree": {"torch"} | SOCKETS | CLOCKS,
    "policy": {"torch"} | SOCKETS | CLOCKS,
}
ONLY_IN_MODELS = {"transformers", "bitsandbytes"}


def python_files(root: Path) -> Iterator[Path]:
    for package in (FACE, *sorted(LINES[0])):
        yield from sorted((root / package).rglob("*.py"))


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yield line and full dotted name of everything that a file imports."""
    package = module_name(path, root).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parts = [*base, *(node.module or "").split(".")]
            prefix = ".".join(part for part in parts if part)
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def unit_of(name: str, root: Path) -> str | None:
    """Return the unit of the table that a dotted name is part of; None for other packages."""
    first, *rest = name.split(".")
    if first != FACE:
        return first if first in LINES[0] else None
    if not rest:
        return FACE
    unit = ALIASES.get(rest[0], rest[0])
    home = root / FACE / rest[0]
    return unit if home.is_dir() or home.with_suffix(".py").is_file() else FACE


def fault(unit: str, name: str, root: Path) -> str | None:
    """Say why a unit must not import a name, or None when it may."""
    package = name.split(".")[0]
    if package in ONLY_IN_MODELS and unit != "models":
        return "only models may"
    if package in FORBIDDEN.get(unit, ()):
        return f"{unit} must not know it"
    other = unit_of(name, root)
    if other in (None, unit) or name == f"{FACE}.__version__":
        return None
    if unit in LINES[0]:
        return None if other in PUBLIC else "it is not public"
    if other == FACE:
        return None if unit in USERS_OF_THE_FACE else "the package's face is above it"
    if other not in LINE_OF:
        return f"{other} is on no line of the table"
    if unit == FACE or LINE_OF[unit] < LINE_OF[other] or (unit, other) in SIDEWAYS:
        return None
    return "it is on the same line" if LINE_OF[unit] == LINE_OF[other] else "it is above"


def import_violations(root: Path) -> list[str]:
    found = []
    for path in python_files(root):
        unit = unit_of(module_name(path, root), root)
        where = path.relative_to(root)
        if unit != FACE and unit not in LINE_OF:
            found.append(f"{where}: {unit} is on no line of the table")
            continue
        for line, name in imported(path, root):
            if reason := fault(unit, name, root):
                found.append(f"{where}:{line}: imports {name}: {reason}")
    return found


def forbidden_uses(path: Path, allowed: dict[str, set[str]]) -> Iterator[str]:
    """Yield every print, every look at the environment or the command line that is out of place."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        uses: set[str] = set()
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            uses = {"print"}
        elif isinstance(node, ast.Attribute):
            uses = {ast.unparse(node)}
        elif isinstance(node, ast.ImportFrom):
            uses = {f"{node.module}.{alias.name}" for alias in node.names}
        for use in uses & allowed.keys():
            if path.name not in allowed[use]:
                yield f"{path.name}:{getattr(node, 'lineno', 0)}: {use}"


USES = {
    "print": {"cli.py"},
    "sys.argv": {"cli.py"},
    "os.environ": {"cli.py", "settings.py"},
    "os.getenv": {"cli.py", "settings.py"},
}


def test_no_module_imports_what_its_line_must_not_know() -> None:
    assert import_violations(ROOT) == []


def test_the_library_prints_nothing_and_reads_no_environment_of_its_own() -> None:
    uses = [use for path in (ROOT / FACE).rglob("*.py") for use in forbidden_uses(path, USES)]
    assert uses == []


def test_importing_the_package_leaves_torch_out() -> None:
    code = "import sys, autodraft; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def plant(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    plant(
        tmp_path,
        autodraft__errors="",
        autodraft__config="from autodraft.errors import X",
        autodraft__tree__growth="import numpy\nfrom autodraft.errors import X",
        autodraft__engine__session="from autodraft.tree.growth import grow\nimport time",
        autodraft__models__loader="import torch\nimport transformers",
        autodraft__api="from autodraft import __version__\nfrom autodraft.engine import session",
        autodraft__cli="from autodraft.api import Autodraft",
        evaluation__runner="from autodraft import Autodraft\nfrom autodraft.config import C",
    )
    (tmp_path / "autodraft" / "__init__.py").write_text("from autodraft.api import Autodraft")
    return tmp_path


def test_the_checker_finds_nothing_in_a_clean_tree(toy: Path) -> None:
    assert import_violations(toy) == []


@pytest.mark.parametrize(
    ("module", "code", "told"),
    [
        ("autodraft__tree__bad", "from autodraft.engine import session", "it is above"),
        ("autodraft__tree__bad", "def f():\n    import autodraft.api", "it is above"),
        ("autodraft__tree__bad", "from ..engine.session import run", "it is above"),
        ("autodraft__tree__bad", "from autodraft import config", "it is on the same line"),
        ("autodraft__tree__bad", "import time", "tree must not know it"),
        ("autodraft__policy__bad", "import asyncio", "policy must not know it"),
        ("autodraft__policy__bad", "from autodraft.models import loader", "same line"),
        ("autodraft__transport__bad", "def f():\n    import torch", "transport must not know it"),
        ("autodraft__protocol__bad", "from torch import Tensor", "protocol must not know it"),
        ("autodraft__config__names", "import torch.nn", "config must not know it"),
        ("autodraft__engine__bad", "import transformers", "only models may"),
        ("autodraft__engine__bad", "from autodraft import Autodraft", "face is above it"),
        ("autodraft__engine__bad", "import evaluation.runner", "it is above"),
        ("autodraft__errors", "from autodraft import records", "same line"),
        ("autodraft__surprise", "", "surprise is on no line of the table"),
        ("evaluation__bad", "from autodraft import engine", "it is not public"),
        ("evaluation__bad", "from autodraft.models.loader import load_model", "not public"),
        ("evaluation__bad", "import bitsandbytes", "only models may"),
    ],
)
def test_the_checker_finds_a_planted_import(module: str, code: str, told: str, toy: Path) -> None:
    plant(toy, autodraft__records="")
    plant(toy, **{module: code})
    violations = import_violations(toy)
    assert len(violations) == 1
    assert told in violations[0]


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("print('x')", "print"),
        ("import os\nos.environ['A']", "os.environ"),
        ("import os\nvalue = os.environ.get('A')", "os.environ"),
        ("from os import path, environ", "os.environ"),
        ("import sys\nsys.argv[1:]", "sys.argv"),
    ],
)
def test_the_checker_finds_a_planted_use(code: str, use: str, toy: Path) -> None:
    plant(toy, autodraft__bad=code, autodraft__cli=code)
    assert [line.split(": ")[1] for line in forbidden_uses(toy / "autodraft/bad.py", USES)] == [use]
    assert list(forbidden_uses(toy / "autodraft/cli.py", USES)) == []
