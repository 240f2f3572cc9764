"""The table of benchmarks: name → the files that hold its questions and how they are read.

This module knows no prompts' templates, no models, no reference answers and no environment: the
places are handed to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from autodraft.errors import ConfigError, DataError
from evaluation.datasets.questions import SPEC_BENCH_TASKS, Question, first_questions
from evaluation.datasets.rows import (
    FastChatRow,
    Gsm8kRow,
    HumanEvalCompletionRow,
    HumanEvalRow,
    Row,
    check_spec_bench,
    parse_questions,
    parse_turns,
)
from evaluation.datasets.sources import (
    Locations,
    Source,
    find_local_source,
    find_source,
    what_would_be_downloaded,
)

_QUICK_FILE: Final = Path(__file__).parent.with_name("quick.jsonl")
_SPEC_BENCH_FILE: Final = "spec_bench.jsonl"

_Parse = Callable[[Source, str], tuple[Question, ...]]


@dataclass(frozen=True)
class _Bench:
    """How a benchmark is read.

    Attributes:
        files: Names of the files that hold its questions, the better one first; none where the
            questions are bundled.
        parse: Takes the file that was found and the benchmark's name.
    """

    files: tuple[str, ...]
    parse: _Parse


def _parse_turns(source: Source, bench: str, turn_counts: tuple[int, ...]) -> tuple[Question, ...]:
    return parse_turns(source.data, source.path, bench, turn_counts)


def _parse_prompts(source: Source, bench: str, form: type[Row]) -> tuple[Question, ...]:
    return parse_questions(source.data, source.path, bench, form)


def _parse_spec_bench(source: Source, bench: str, task: str | None) -> tuple[Question, ...]:
    """Read the questions of one sub-task; ``None`` means all. The whole file is checked."""
    questions = parse_questions(source.data, source.path, bench, FastChatRow, check_spec_bench)
    if task is None:
        return questions
    chosen = tuple(q for q in questions if SPEC_BENCH_TASKS[q.category] == task)
    if not chosen:
        raise DataError(
            f"{source.path}: the file holds no question of the sub-task {task}. Use the whole file "
            "of Spec-Bench, or choose another benchmark with --set dataset.BENCHES_CSV=NAME."
        )
    return chosen


def _parse_articles(source: Source, bench: str) -> tuple[Question, ...]:
    if source.name == _SPEC_BENCH_FILE:
        return _parse_spec_bench(source, bench, "summarization")
    return _parse_turns(source, bench, (1,))


def _spec_bench(task: str | None) -> _Bench:
    return _Bench((_SPEC_BENCH_FILE,), partial(_parse_spec_bench, task=task))


# The one table of benchmarks.
_BENCHES: Final[dict[str, _Bench]] = {
    "mt_bench": _Bench(("mt_bench.jsonl",), partial(_parse_turns, turn_counts=(2,))),
    "humaneval": _Bench(("humaneval.jsonl",), partial(_parse_prompts, form=HumanEvalRow)),
    "humaneval:completion": _Bench(
        ("humaneval.jsonl",), partial(_parse_prompts, form=HumanEvalCompletionRow)
    ),
    "spec_bench": _spec_bench(None),
    **{
        f"spec_bench:{task}": _spec_bench(task) for task in dict.fromkeys(SPEC_BENCH_TASKS.values())
    },
    "gsm8k": _Bench(("gsm8k.jsonl",), partial(_parse_prompts, form=Gsm8kRow)),
    "cnn_dailymail": _Bench(("cnn_dailymail.jsonl", _SPEC_BENCH_FILE), _parse_articles),
    "quick": _Bench((), partial(_parse_turns, turn_counts=(1, 2))),
}
AVAILABLE_BENCHES: Final = tuple(_BENCHES)


def require_loader(bench: str) -> None:
    """Raise unless this version can read the benchmark.

    Raises:
        ConfigError: If it cannot; the message lists those that it can.
    """
    if bench not in _BENCHES:
        raise ConfigError(
            f"Benchmark {bench!r} cannot be read by this version. Available: "
            f"{', '.join(AVAILABLE_BENCHES)}. Choose with --set dataset.BENCHES_CSV=NAME,NAME."
        )


def _bundled() -> Source:
    return Source(_QUICK_FILE.name, _QUICK_FILE, _QUICK_FILE.read_bytes())


def load_bench(bench: str, locations: Locations, limit: int | None = None) -> tuple[Question, ...]:
    """Load the questions of one benchmark; download its file where that is allowed and needed.

    Args:
        bench: Name of the benchmark.
        locations: Where question files may be taken from; bundled questions need none.
        limit: Keep the first so many questions of each sub-task (of the benchmark, where it has
            none); ``None`` keeps all. The whole file is checked either way.

    Returns:
        The questions, in the order of the file.

    Raises:
        ConfigError: If this version has no loader for the benchmark.
        DataError: If its file is found nowhere or is malformed.
    """
    require_loader(bench)
    entry = _BENCHES[bench]
    source = find_source(bench, entry.files, locations) if entry.files else _bundled()
    return first_questions(bench, entry.parse(source, bench), limit)


def describe_source(bench: str, locations: Locations) -> str:
    """Say where the questions of a benchmark come from, without downloading anything.

    Args:
        bench: Name of the benchmark.
        locations: Where question files may be taken from.

    Returns:
        The file, its SHA-256 and what it is; or what ``load_bench`` would download.

    Raises:
        ConfigError: If this version has no loader for the benchmark.
        DataError: If its file is found nowhere.
    """
    require_loader(bench)
    files = _BENCHES[bench].files
    source = find_local_source(bench, files, locations) if files else _bundled()
    if source is None:
        return f"to be downloaded: {what_would_be_downloaded(files)}"
    return f"{source.path} (sha256 {source.sha256}; {_what_it_is(bench, source)})"


def _what_it_is(bench: str, source: Source) -> str:
    if bench == "quick":
        return "bundled"
    if source.is_published is None:
        return "there is no published file to compare it with"
    what = "as published" if source.is_published else "not the published file"
    if bench == "cnn_dailymail":
        return f"{what}; only the articles of Spec-Bench's sub-task summarization"
    return what
