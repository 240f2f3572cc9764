"""The harness's command line around a fake engine, and a look at what it left."""

import json
from pathlib import Path
from typing import Any

from autodraft.config import ExperimentConfig
from autodraft.errors import AutodraftError
from evaluation.cli import main
from evaluation.roles import Engine
from tests.unit.evaluation_fakes import FakeEngine, Messages

METHODS = "server_only,chain,fixed_tree,opt_tree"


class Harness:
    """Calls the command line with one fake engine and looks at what it left."""

    def __init__(self, config: Path, output: Path, engine: FakeEngine) -> None:
        self.config = config
        self.output = output
        self.engine = engine
        self.made: list[ExperimentConfig] = []

    def __call__(self, *options: str) -> int:
        def make_engine(config: ExperimentConfig) -> Engine:
            self.made.append(config)
            return self.engine

        given = ["run", str(self.config), "--output", str(self.output), *options]
        return main(given, make_engine)

    @property
    def folders(self) -> list[Path]:
        return sorted((self.output / "example").iterdir())

    @property
    def folder(self) -> Path:
        (folder,) = self.folders
        return folder

    @property
    def session(self) -> dict[str, Any]:
        session: dict[str, Any] = self.manifest()["sessions"][-1]
        return session

    def lines(self, name: str = "requests.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return manifest


def fail_at(number: int, error: BaseException) -> FakeEngine:
    """Return an engine that fails on its so-manyth request."""
    count = 0

    def failure(label: str, messages: Messages) -> AutodraftError | None:
        nonlocal count
        count += 1
        if count == number:
            raise error
        return None

    return FakeEngine(failure)
