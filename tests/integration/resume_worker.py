"""Sessions of experiments that are killed at a chosen moment; driven by ``test_resume.py``.

Reads a line from standard input for each session: the moment at which it is killed, counted from 1,
or 0 to let it end by itself, and the experiment's folder. A moment is: before an answer, before,
within and after each write of a file. Prints how each session ended: its exit code, or minus the
signal. Every session is a process of its own, forked from this one so that nothing is imported
twice. In the experiment's folder, ``asked`` has a line for each request, and ``made`` is there when
an engine was made.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import evaluation.report
import evaluation.store
from autodraft.config import ExperimentConfig, MethodSpec
from autodraft.records import GenerationResult
from evaluation.cli import main
from evaluation.lines import hash_prompt
from tests.unit.evaluation_fakes import FakeEngine, make_record


class Bomb:
    """Counts moments; the process dies at the chosen one, as by ``kill -9``."""

    def __init__(self, moment: int) -> None:
        self._left = moment

    def is_due(self) -> bool:
        self._left -= 1
        return self._left == 0

    def tick(self) -> None:
        if self.is_due():
            self.explode()

    def explode(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class SteadyEngine(FakeEngine):
    """Figures follow from prompt and method alone, as if by a clock that never varies."""

    def __init__(self, bomb: Bomb, asked: Path) -> None:
        super().__init__()
        self._bomb = bomb
        self._asked = asked

    def run(
        self,
        *,
        prompt_ids: Sequence[int],
        method: MethodSpec,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        **wish: Any,
    ) -> GenerationResult:
        with self._asked.open("a") as file:
            file.write(f"{method.label}\n")
        self._bomb.tick()
        result = super().run(
            prompt_ids=prompt_ids, method=method, max_new_tokens=max_new_tokens, stop=stop, **wish
        )
        number = int(hash_prompt([*prompt_ids, *method.label.encode()])[:4], 16)
        tokens = 3 + number % 29
        record = make_record(
            method.name,
            output_tokens=tokens,
            output_ids=list(range(tokens)),
            total_s=0.1 + number / 7919,
            draft_j=number / 31,
        )
        return msgspec.structs.replace(result, request=record, token_ids=record.output_ids)


def plant(bomb: Bomb) -> None:
    """Make every write of a file three moments."""
    append, write = evaluation.store._append, evaluation.store.write_atomic

    def torn_append(path: Path, data: bytes) -> None:
        bomb.tick()
        if bomb.is_due():
            with path.open("ab") as file:
                file.write(data[: len(data) // 2])
            bomb.explode()
        append(path, data)
        bomb.tick()

    def torn_write(path: Path, data: bytes) -> None:
        bomb.tick()
        if bomb.is_due():
            path.with_name(f".{path.name}.tmp").write_bytes(data[: len(data) // 2])
            bomb.explode()
        write(path, data)
        bomb.tick()

    evaluation.store._append = torn_append
    evaluation.store.write_atomic = torn_write


def session(moment: int, folder: Path) -> int:
    bomb = Bomb(moment)
    plant(bomb)

    def make_engine(config: ExperimentConfig) -> FakeEngine:
        (folder / "made").touch()
        return SteadyEngine(bomb, folder / "asked")

    return main(["run", f"{folder}/example.yaml", "--output", f"{folder}/out"], make_engine)


def serve() -> None:
    # Pictures are drawn from the tables and take longer than all the rest.
    evaluation.report.draw_tradeoffs = lambda points, folder: []
    replies = os.dup(1)
    os.dup2(2, 1)  # what a session prints goes elsewhere
    for line in sys.stdin:
        moment, _, folder = line.rstrip("\n").partition(" ")
        child = os.fork()
        if child == 0:
            try:
                os._exit(session(int(moment), Path(folder)))
            except BaseException:  # noqa: BLE001 - a child must not go on with its parent's loop
                sys.excepthook(*sys.exc_info())
                os._exit(99)
        _, status = os.waitpid(child, 0)
        os.write(replies, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    serve()
