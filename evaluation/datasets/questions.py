"""Questions and their parts: sub-tasks, the first ones, those held out, those asked twice.

This module knows no files: where questions come from, and how a file spells them, is said in
``benches.py``, ``sources.py`` and ``rows.py``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal

from autodraft.errors import DataError

Form = Literal["chat", "completion"]

MT_BENCH_CATEGORIES: Final = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
# Category of a Spec-Bench row → its sub-task. The first sub-task is MT-bench, whose rows keep its
# own categories; `math` is one of those, `math_reasoning` is GSM8K.
SPEC_BENCH_TASKS: Final = dict.fromkeys(MT_BENCH_CATEGORIES, "mt_bench") | {
    task: task for task in ("translation", "summarization", "qa", "math_reasoning", "rag")
}

# Sub-task of Spec-Bench → what it holds, in words.
_CONTENTS: Final = {task: f"Spec-Bench's sub-task {task}" for task in SPEC_BENCH_TASKS.values()} | {
    "mt_bench": "the 80 questions of MT-bench (ids 81 to 160)",
    "summarization": "articles of CNN/DailyMail",
    "math_reasoning": "80 questions of the GSM8K test split",
}
_HUMANEVAL: Final = "the problems of HumanEval"
# Name of a benchmark → what it holds that another one may hold as well.
_HOLDS: Final[dict[str, frozenset[str]]] = {
    "mt_bench": frozenset({_CONTENTS["mt_bench"]}),
    "humaneval": frozenset({_HUMANEVAL}),
    "humaneval:completion": frozenset({_HUMANEVAL}),
    "spec_bench": frozenset(_CONTENTS.values()),
    **{f"spec_bench:{task}": frozenset({what}) for task, what in _CONTENTS.items()},
    "gsm8k": frozenset({_CONTENTS["math_reasoning"]}),
    "cnn_dailymail": frozenset({_CONTENTS["summarization"]}),
}


@dataclass(frozen=True)
class Question:
    """One question of a benchmark.

    Attributes:
        id: The id in the benchmark's file, unique in it; where the file has none (GSM8K), the
            number of the row, from 0.
        category: The benchmark's own category; the benchmark's name where it has none.
        turns: The user's messages, in order; of the form ``completion``, the one text to go on
            with.
        bench: Name of the benchmark.
        form: ``chat``: the turns are messages for the target's own chat template.
            ``completion``: the text is the prompt, and no template is put around it.
        stop: Texts before which the answer ends, beside the model's own end.
    """

    id: int | str
    category: str
    turns: tuple[str, ...]
    bench: str
    form: Form = "chat"
    stop: tuple[str, ...] = ()


def subtask(bench: str, category: str) -> str:
    """Return the part of a benchmark that a question belongs to.

    Args:
        bench: Name of the benchmark.
        category: The category of one of its questions.

    Returns:
        For ``spec_bench`` one of its six sub-tasks, as its authors report them; every other
        benchmark is one part, named like itself.
    """
    return SPEC_BENCH_TASKS[category] if bench == "spec_bench" else bench


def _places(bench: str, questions: Iterable[Question]) -> list[tuple[str, int]]:
    """Return for each question its sub-task and its number there, from 1."""
    taken: Counter[str] = Counter()
    places = []
    for question in questions:
        part = subtask(bench, question.category)
        taken[part] += 1
        places.append((part, taken[part]))
    return places


def first_questions(
    bench: str, questions: Sequence[Question], limit: int | None
) -> tuple[Question, ...]:
    """Keep the first questions of each sub-task.

    Args:
        bench: Name of the benchmark.
        questions: Its questions, in the order of the file.
        limit: How many of each sub-task; ``None`` keeps all.

    Returns:
        Those that are kept, in the order of the file.
    """
    if limit is None:
        return tuple(questions)
    places = _places(bench, questions)
    return tuple(q for q, (_, n) in zip(questions, places, strict=True) if n <= limit)


def hold_out(
    bench: str, questions: Sequence[Question], count: int
) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
    """Split questions into those that are measured and those that baselines are tuned on.

    The last ``count`` questions of each sub-task are held out, so that a limit, which counts from
    the front, changes nothing about which they are. To be called with all questions of a benchmark.

    Args:
        bench: Name of the benchmark.
        questions: Its questions, in the order of the file.
        count: How many of each sub-task are held out; 0 holds out none.

    Returns:
        The questions to measure and the validation questions, each in the order of the file.

    Raises:
        DataError: If a sub-task would keep no question to measure.
    """
    places = _places(bench, questions)
    sizes = Counter(part for part, _ in places)
    for part, size in sizes.items():
        if size <= count:
            raise DataError(
                f"Benchmark {bench}: {part} has {size} questions, and dataset.VALIDATION_QUESTIONS="
                f"{count} would leave none of them to measure. Choose a number from 0 to "
                f"{size - 1}, or a file with more questions."
            )
    measured: list[Question] = []
    validation: list[Question] = []
    for question, (part, number) in zip(questions, places, strict=True):
        (validation if number > sizes[part] - count else measured).append(question)
    return tuple(measured), tuple(validation)


def overlaps(benches: Sequence[str]) -> list[str]:
    """Say which of the benchmarks of a run hold the same questions.

    Args:
        benches: Names of the benchmarks.

    Returns:
        One sentence for each pair that is no independent data; most often none.
    """
    notes = []
    for first, second in combinations(dict.fromkeys(benches), 2):
        shared = _HOLDS.get(first, frozenset()) & _HOLDS.get(second, frozenset())
        notes += [
            f"{first} and {second} both hold {what}: do not count them as independent data."
            for what in sorted(shared)
        ]
    return notes
