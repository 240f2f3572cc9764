"""Getting to know a pair: real answers to a few prompts, from which its prior is learned.

Takes half a minute, once for a pair; what was learned is kept beside the latency tables. Knows the
draft, the target and their meters; decides no shape.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from autodraft.decoding.stopping import StopRules, answer_limit
from autodraft.engine.drafter import Drafter
from autodraft.engine.remote import RemoteTarget
from autodraft.engine.rounds import Meters, Rounds
from autodraft.engine.session import Request, Speculative
from autodraft.errors import ProfileError
from autodraft.policy.survey import PairPrior, SurveyPolicy
from autodraft.profiling.store import profile_path, read_profile, write_profile
from autodraft.profiling.traces import Trace
from autodraft.records import RequestRecord

PAIR: Final = "pair"
"""Kind of these profiles."""
LONGEST_S: Final = 30.0
"""No further prompt is asked after so many seconds."""
ANSWER_TOKENS: Final = 48

Prompts = Iterable[Sequence[int]]
Traced = Callable[[Sequence[int], Sequence[int]], Trace]


class MeasuredPowers(NamedTuple):
    """What the machines drew by their counters, in watts; None where a counter says nothing.

    Attributes:
        draft_watts: The user's device at work.
        target_watts: The target's machine at work.
        target_idle_watts: The same while it waits.
    """

    draft_watts: float | None
    target_watts: float | None
    target_idle_watts: float | None


class Survey(NamedTuple):
    """What was found out about a pair.

    Attributes:
        prior: Of its trees.
        powers: Of its machines.
        traces: Of the answers that it rests on.
    """

    prior: PairPrior
    powers: MeasuredPowers
    traces: tuple[Trace, ...]


def survey(
    target: RemoteTarget,
    drafter: Drafter,
    prompts: Prompts,
    meters: Meters,
    draft_idle_watts: float | None,
    traced: Traced,
) -> Survey:
    """Answer prompts with wide and deep trees, until there is no more or the time is over.

    Args:
        target: The target; no session may be open.
        drafter: Drafts; not in use.
        prompts: Token ids of each.
        meters: Of both sides.
        draft_idle_watts: What the user's device draws idle, in W.
        traced: Traces an answer; prompt and answer are its arguments.

    Raises:
        ProfileError: If no prompt fits the target's context, or all answers end at once.
        LinkError: If the link or the server fails.
    """
    welcome = target.welcome
    policy = SurveyPolicy(welcome.max_nodes, welcome.max_depth)
    until, records, traces = time.perf_counter() + LONGEST_S, [], []
    for prompt in prompts:
        limit = answer_limit(ANSWER_TOKENS, len(prompt), welcome.max_context)
        if limit < 1:
            continue
        rules = StopRules(frozenset(welcome.eos_ids), limit)
        method = Speculative("survey", Rounds(policy, drafter))
        policy.begin_text()
        request = Request(target, method, prompt, rules, meters)
        for _ in request:
            pass
        records.append(request.record)
        traces.append(traced(prompt, request.record.output_ids))
        if time.perf_counter() > until:
            break
    if not policy.rounds:
        raise ProfileError(
            f"Nothing can be learned of this pair: {welcome.model} answers none of the prompts of "
            "the survey with more than a token. Is it a chat model, and its context long enough?"
        )
    return Survey(policy.prior(), _powers(records, draft_idle_watts), tuple(traces))


def _powers(records: Sequence[RequestRecord], draft_idle_watts: float | None) -> MeasuredPowers:
    draft = _busy_watts(
        _sum(record.draft_j for record in records),
        draft_idle_watts,
        math.fsum(record.draft_s or 0.0 for record in records),
        math.fsum(record.total_s for record in records),
    )
    gross = _sum(record.target_j for record in records)
    net = _sum(record.target_net_j for record in records)
    held_s = math.fsum(record.target_held_s for record in records)
    idle = None if gross is None or net is None else (gross - net) / held_s
    busy_s = math.fsum(record.target_busy_s for record in records)
    return MeasuredPowers(draft, _busy_watts(gross, idle, busy_s, held_s), idle)


def _busy_watts(
    gross_j: float | None, idle_watts: float | None, busy_s: float, total_s: float
) -> float | None:
    if gross_j is None or idle_watts is None or busy_s <= 0:
        return None
    return max(idle_watts, (gross_j - idle_watts * (total_s - busy_s)) / busy_s)


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return math.fsum(known) if len(known) == len(found) else None


def stored_survey(
    folder: Path, key: str, measure: Callable[[], Survey], *, refresh: bool, allowed: bool
) -> Survey:
    """Return what is known of a pair, from disk or found out now.

    Args:
        folder: Where profiles are kept.
        key: What it holds for: both models.
        measure: Finds it out.
        refresh: Find out again what is on disk.
        allowed: Whether what is missing may be found out.

    Raises:
        ProfileError: If it is missing and must not be found out, or the file is damaged.
    """
    content = None if refresh else read_profile(folder, PAIR, key)
    if content is not None:
        return _read(content, profile_path(folder, PAIR, key))
    if not allowed:
        raise ProfileError(
            f"Nothing is known of the pair {key!r}, and DISABLE_AUTO_PROFILE=1 forbids to find it "
            "out. Run `python -m autodraft profile`, or set DISABLE_AUTO_PROFILE=0."
        )
    found = measure()
    prior = {name: _plain(value) for name, value in vars(found.prior).items()}
    content = {
        "prior": prior,
        "powers": found.powers._asdict(),
        "traces": [msgspec.structs.asdict(trace) for trace in found.traces],
    }
    write_profile(folder, PAIR, key, content)
    return found


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _read(content: dict[str, Any], path: Path) -> Survey:
    try:
        stored = content["prior"]
        prior = PairPrior(
            calibration=np.array(stored["calibration"], dtype=np.float64),
            child_sums=np.array(stored["child_sums"], dtype=np.float64),
            child_trials=np.array(stored["child_trials"], dtype=np.float64),
            widths=np.array(stored["widths"], dtype=np.int64),
            gains=np.array(stored["gains"], dtype=np.float64),
            ease=np.array(stored["ease"], dtype=np.float64),
            rounds=int(stored["rounds"]),
        )
        prior.knowledge()  # checks the shapes
        traces = msgspec.convert(content["traces"], tuple[Trace, ...])
        return Survey(prior, MeasuredPowers(**content["powers"]), traces)
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(
            f"The profile {path} is damaged ({error}). Delete the file, or measure again: "
            "python -m autodraft profile --refresh"
        ) from error
