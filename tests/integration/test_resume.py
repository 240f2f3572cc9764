"""A run that is killed with SIGKILL, again and again, ends with the tables of an undisturbed one.

The engine is a fake whose figures follow from prompt and method alone. The moments of death are
counted, not timed: before an answer, and before, within and after every write of a file, so that
the tests are the same on every machine.
"""

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKER = "tests.integration.resume_worker"
TABLES = ("summary.csv", "categories.csv", "tradeoff.csv")
KILLED = -signal.SIGKILL
KILLS = 30
SEED = 20260102

CONFIG = """
models:
  BASE_MODEL_PATH: embedded:smollm2-135m-instruct
  DRAFT_MODEL_PATH: embedded:smollm2-draft
dataset: {{BENCHES_CSV: quick, QUESTION_LIMIT: {limit}}}
algorithms: {{METHODS_CSV: "chain,server_only,opt_tree", CHAIN_D: 3}}
network: {{RTT_MS: "0,20"}}
run: {{REPEATS: {repeats}, WARMUP_QUESTIONS: 0}}
"""


class Worker:
    """The process that forks the sessions."""

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=ROOT,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def session(self, folder: Path, kill_at: int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kill_at} {folder}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=30)


class Experiment:
    """One experiment on disk, run session after session."""

    def __init__(self, worker: Worker, folder: Path, limit: int, repeats: int = 1) -> None:
        folder.mkdir()
        (folder / "example.yaml").write_text(CONFIG.format(limit=limit, repeats=repeats))
        self._worker, self._home = worker, folder
        self.made = folder / "made"

    def session(self, kill_at: int = 0) -> int:
        """Run one session; return its exit code, or minus the signal that ended it."""
        return self._worker.session(self._home, kill_at)

    def run_to_the_end(self) -> None:
        assert self.session() == 0, self._worker.log

    @property
    def folder(self) -> Path:
        """The newest run; an older one was killed before it had its configuration."""
        *killed_at_birth, newest = sorted((self._home / "out" / "example").iterdir())
        assert all(not (each / "config.resolved.yaml").exists() for each in killed_at_birth)
        return newest

    @property
    def tables(self) -> list[bytes]:
        return [(self.folder / name).read_bytes() for name in TABLES]

    @property
    def asked(self) -> int:
        return len((self._home / "asked").read_text().splitlines())

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path / "log")
    yield worker
    worker.close()


def case(line: dict[str, Any]) -> tuple[object, ...]:
    names = ("question_id", "turn", "repeat", "method", "rtt_ms")
    return tuple(line[name] for name in names)


def require_whole(killed: Experiment, undisturbed: Experiment) -> None:
    """Compare everything but the order and the times of day."""
    assert killed.tables == undisturbed.tables
    lines = killed.lines("requests.jsonl")
    assert Counter(map(case, lines)) == Counter(map(case, undisturbed.lines("requests.jsonl")))
    assert set(Counter(map(case, lines)).values()) == {1}
    rounds = Counter(map(case, killed.lines("rounds.jsonl")))
    assert rounds == Counter(map(case, undisturbed.lines("rounds.jsonl")))
    assert json.loads((killed.folder / "manifest.json").read_text())["status"] == "finished"


def test_thirty_kills_change_no_table_and_lose_a_question_each_at_most(
    worker: Worker, tmp_path: Path
) -> None:
    undisturbed = Experiment(worker, tmp_path / "undisturbed", limit=5, repeats=2)
    undisturbed.run_to_the_end()
    requests = len(undisturbed.lines("requests.jsonl"))
    assert requests == undisturbed.asked == 6 * 3 * 2 * 2  # turns, methods, networks, repeats
    killed = Experiment(worker, tmp_path / "killed", limit=5, repeats=2)
    moments = random.Random(SEED)
    for _ in range(KILLS):
        # A session begins with about 16 moments before the first answer; an answer has 7.
        assert killed.session(kill_at=moments.randint(1, 45)) == KILLED, worker.log
    killed.run_to_the_end()
    require_whole(killed, undisturbed)
    assert requests < killed.asked <= requests + KILLS
    sessions = json.loads((killed.folder / "manifest.json").read_text())["sessions"]
    assert {each["status"] for each in sessions[:-1]} == {"killed"}


def test_a_kill_at_any_moment_of_a_run_changes_no_table(worker: Worker, tmp_path: Path) -> None:
    undisturbed = Experiment(worker, tmp_path / "undisturbed", limit=1)
    undisturbed.run_to_the_end()
    moment, ended = 0, KILLED
    while ended == KILLED:
        moment += 1
        killed = Experiment(worker, tmp_path / f"killed-{moment}", limit=1)
        ended = killed.session(kill_at=moment)
        killed.run_to_the_end()
        require_whole(killed, undisturbed)
    assert ended == 0
    assert moment > 60  # moments of a whole run


def test_a_finished_run_makes_no_engine(worker: Worker, tmp_path: Path) -> None:
    experiment = Experiment(worker, tmp_path / "finished", limit=2)
    experiment.run_to_the_end()
    before, asked = experiment.tables, experiment.asked
    experiment.made.unlink()
    experiment.run_to_the_end()
    assert not experiment.made.exists()
    assert experiment.asked == asked
    assert experiment.tables == before
    assert "Nothing is left to do" in worker.log
