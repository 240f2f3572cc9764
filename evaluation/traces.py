"""Traces of a run's answers: ``trace.jsonl``, one line for each answer of the reference method.

An answer is traced once, under whichever conditions it was asked first. This module knows no model.
"""

import msgspec

from autodraft.simulate import Trace, encode_trace, read_traces
from evaluation.interrupts import Interrupts
from evaluation.lines import Case
from evaluation.store import TRACE_FILE, RunStore

_Name = tuple[str, int | str, int]


class RunTraces:
    """The traces of one run, each kept as it is made."""

    def __init__(self, store: RunStore, interrupts: Interrupts) -> None:
        """Find those that an earlier session made.

        Args:
            store: The run's folder, mended.
            interrupts: Hold signals back while a line is written.

        Raises:
            StoreError: If the file cannot be read or holds a malformed line.
        """
        self._store = store
        self._interrupts = interrupts
        path = store.folder / TRACE_FILE
        there = path.exists() and path.stat().st_size > 0
        self._known: set[_Name] = (
            {(trace.bench, trace.question_id, trace.turn) for trace in read_traces(path)}
            if there
            else set()
        )

    def wants(self, case: Case) -> bool:
        """Return whether an answer has no trace yet."""
        return _name(case) not in self._known

    def keep(self, case: Case, trace: Trace) -> None:
        """Write the trace of an answer.

        Raises:
            StoreError: If it cannot be written.
        """
        named = msgspec.structs.replace(
            trace,
            bench=case.bench,
            question_id=case.question_id,
            category=case.category,
            turn=case.turn,
        )
        with self._interrupts.held():
            self._store.append_trace(encode_trace(named))
        self._known.add(_name(case))


def _name(case: Case) -> _Name:
    return case.bench, case.question_id, case.turn
