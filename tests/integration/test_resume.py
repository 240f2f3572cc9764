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
from collections.abc import Callable, Iterator
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
run: {{REPEATS: 2, WARMUP_QUESTIONS: 0}}
"""


class Experiment:
    """One experiment on disk, run by a worker session after session."""

    def __init__(self, folder: Path, limit: int) -> None:
        folder.mkdir()
        (folder / "example.yaml").write_text(CONFIG.format(limit=limit))
        self._asked, self.made = folder / "asked", folder / "made"
        self._root = folder / "out"
        arguments = ["run", str(folder / "example.yaml"), "--output", str(self._root)]
        self.log = folder / "log"
        with self.log.open("w") as log:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(self._asked), str(self.made), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )

    def session(self, kill_at: int = 0) -> int:
        """Run one session; return its exit code, or minus the signal that ended it."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(f"{kill_at}\n")
        self._worker.stdin.flush()
        return int(self._worker.stdout.readline())

    def close(self) -> None:
        self._worker.communicate(timeout=30)

    @property
    def folder(self) -> Path:
        """The newest run; an older one was killed before it had its configuration."""
        *killed_at_birth, newest = sorted((self._root / "example").iterdir())
        assert all(not (each / "config.resolved.yaml").exists() for each in killed_at_birth)
        return newest

    @property
    def tables(self) -> list[bytes]:
        return [(self.folder / name).read_bytes() for name in TABLES]

    @property
    def asked(self) -> int:
        return len(self._asked.read_text().splitlines())

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


Make = Callable[[str, int], Experiment]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Experiment] = []

    def new(name: str, limit: int) -> Experiment:
        made.append(Experiment(tmp_path / name, limit))
        return made[-1]

    yield new
    for each in made:
        each.close()


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


def test_thirty_kills_change_no_table_and_lose_a_question_each_at_most(make: Make) -> None:
    undisturbed, killed = make("undisturbed", 5), make("killed", 5)
    assert undisturbed.session() == 0
    requests = len(undisturbed.lines("requests.jsonl"))
    assert requests == undisturbed.asked == 6 * 3 * 2 * 2
    moments = random.Random(SEED)
    for _ in range(KILLS):
        # A session begins with about 16 moments before the first answer; an answer has 7.
        assert killed.session(kill_at=moments.randint(1, 45)) == KILLED, killed.log.read_text()
    assert killed.session() == 0, killed.log.read_text()
    require_whole(killed, undisturbed)
    assert killed.asked <= requests + KILLS
    sessions = json.loads((killed.folder / "manifest.json").read_text())["sessions"]
    assert {each["status"] for each in sessions[:-1]} == {"killed"}


def test_a_kill_at_any_moment_of_a_run_changes_no_table(make: Make) -> None:
    undisturbed = make("undisturbed", 1)
    assert undisturbed.session() == 0
    moment, ended = 0, KILLED
    while ended == KILLED:
        moment += 1
        killed = make(f"killed-{moment}", 1)
        ended = killed.session(kill_at=moment)
        assert killed.session() == 0, killed.log.read_text()
        require_whole(killed, undisturbed)
    assert moment > 100  # moments of a whole run


def test_a_finished_run_makes_no_engine(make: Make) -> None:
    experiment = make("finished", 2)
    assert experiment.session() == 0
    before, asked = experiment.tables, experiment.asked
    experiment.made.unlink()
    assert experiment.session() == 0
    assert not experiment.made.exists()
    assert experiment.asked == asked
    assert experiment.tables == before
    assert "Nothing is left to do" in experiment.log.read_text()
