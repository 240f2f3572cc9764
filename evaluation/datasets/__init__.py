"""Benchmark questions: found, checked, read as they are.

``questions`` knows what a question is, ``rows`` how files spell them, ``download`` what was
published where, ``sources`` in which places files are looked for, ``benches`` which benchmark
there is. None of them knows models, templates, answers or the environment.
"""

from evaluation.datasets.benches import (
    AVAILABLE_BENCHES,
    describe_source,
    load_bench,
    require_loader,
)
from evaluation.datasets.questions import (
    Form,
    Question,
    first_questions,
    hold_out,
    overlaps,
    subtask,
)
from evaluation.datasets.sources import BENCH_DIR_VARIABLE, Locations

__all__ = [
    "AVAILABLE_BENCHES",
    "BENCH_DIR_VARIABLE",
    "Form",
    "Locations",
    "Question",
    "describe_source",
    "first_questions",
    "hold_out",
    "load_bench",
    "overlaps",
    "require_loader",
    "subtask",
]
