"""Simulated answers whose times and counts can be worked out by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autodraft.config import (
    AlgorithmsConfig,
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    NetworkSetting,
    ObjectiveConfig,
    TreeConfig,
)
from autodraft.errors import ConfigError
from autodraft.profiling.tables import LatencyTable
from autodraft.simulate import Devices, Simulator, Trace, place_of

PROMPT = [900, 901, 902, 903]
DRAFT_S, PLAIN_S, VERIFY_S, PREFILL_S = 0.01, 0.1, 0.2, 0.4
RTT_MS = 500.0

MODELS = ModelsConfig(base_model_path="target", draft_model_path="draft")
OBJECTIVE = ObjectiveConfig(
    draft_watts=20.0, draft_idle_watts=5.0, target_watts=100.0, target_idle_watts=10.0
)


def devices(**changes: Any) -> Devices:
    """One draft step takes 10 ms, a plain forward 100 ms, every other one 200 ms."""
    target = LatencyTable([1, 2, 64], [10], [[PLAIN_S, VERIFY_S, VERIFY_S]])
    prefill = LatencyTable([4, 8], [10], [[PREFILL_S, PREFILL_S]])
    draft = LatencyTable([1, 64], [10], [[DRAFT_S, DRAFT_S]])
    return Devices(
        **{**{"draft": draft, "target": target, "source": "hand", "prefill": prefill}, **changes}
    )


def trace(output: Sequence[int], right: Sequence[bool] | None = None, **fields: Any) -> Trace:
    """An answer whose tokens the draft guesses right first of all where ``right`` says so."""
    hits = [True] * len(output) if right is None else right
    tokens = [
        [token, 500 + place] if hit else [600 + place, 500 + place]
        for place, (token, hit) in enumerate(zip(output, hits, strict=True))
    ]
    log_probs = [[-0.1, -3.0]] * len(output)
    return Trace(
        prompt_ids=PROMPT, output_ids=list(output), tokens=tokens, log_probs=log_probs, **fields
    )


def config(**blocks: Any) -> ExperimentConfig:
    return ExperimentConfig(**{"models": MODELS, "objective": OBJECTIVE, **blocks})


def chain(d: int) -> MethodSpec:
    return config(algorithms=AlgorithmsConfig(chain_d=(d,))).method("chain")


def simulator(*traces: Trace, rtt_ms: float = RTT_MS, **changes: Any) -> Simulator:
    place = place_of(devices(**changes), OBJECTIVE, NetworkSetting(rtt_ms=rtt_ms))
    return Simulator(place, traces)


def test_plain_decoding_takes_prefill_link_and_a_forward_for_each_later_token() -> None:
    one = trace(range(1, 6))
    record = simulator(one).answer(one, config().method("server_only"), 100).request
    assert record.ttft_s == pytest.approx(0.5 + PREFILL_S)
    assert record.total_s == pytest.approx(0.5 + PREFILL_S + 4 * PLAIN_S)
    assert record.target_busy_s == pytest.approx(PREFILL_S + 4 * PLAIN_S)
    assert record.target_forwards == 5
    assert record.output_ids == [1, 2, 3, 4, 5]
    assert record.finish_reason == "stop"
    assert (record.draft_s, record.draft_j) == (None, 0.0)
    idle_s = record.total_s - record.target_busy_s
    assert record.target_j == pytest.approx(100 * record.target_busy_s + 10 * idle_s)


def test_a_streamed_token_takes_what_the_tables_say_beside_its_forward() -> None:
    one = trace(range(1, 6))
    record = simulator(one, token_s=0.02).answer(one, config().method("server_only"), 100).request
    assert record.total_s == pytest.approx(0.5 + PREFILL_S + 4 * (PLAIN_S + 0.02))


def test_rounds_accept_what_the_draft_guesses_and_no_more() -> None:
    # 1 is the target's; then 2 and 3 are guessed, 4 is not; 5 and 6 are guessed, 7 is the bonus.
    one = trace([1, 2, 3, 4, 5, 6, 7], [True, True, True, False, True, True, True])
    found = simulator(one).answer(one, chain(2), 100)
    assert [each.accepted_length for each in found.rounds] == [2, 2]
    assert [each.emitted_tokens for each in found.rounds] == [3, 3]
    assert [each.num_nodes for each in found.rounds] == [2, 2]
    round_s = 2 * DRAFT_S + VERIFY_S + 0.5
    assert [each.round_s for each in found.rounds] == pytest.approx([round_s, round_s])
    record = found.request
    assert record.total_s == pytest.approx(0.5 + PREFILL_S + 2 * round_s)
    assert record.target_busy_s == pytest.approx(PREFILL_S + 2 * VERIFY_S)
    assert record.draft_s == pytest.approx(DRAFT_S + 4 * DRAFT_S)  # the prompt is a step too
    assert record.target_forwards == 3
    assert record.output_tokens == 7


def test_a_draft_that_is_never_right_makes_a_token_a_round() -> None:
    one = trace(range(1, 5), [False] * 4)
    found = simulator(one).answer(one, chain(3), 100)
    assert [each.emitted_tokens for each in found.rounds] == [1, 1, 1]
    assert [each.accepted_length for each in found.rounds] == [0, 0, 0]


def test_the_limit_cuts_an_answer_and_the_last_rounds_trees() -> None:
    one = trace(range(1, 20))
    found = simulator(one).answer(one, chain(4), 8)
    assert found.request.output_ids == list(range(1, 9))
    assert found.request.finish_reason == "length"
    # 5 tokens, then 2 are left: a tree of one node and the bonus token.
    assert [each.num_nodes for each in found.rounds] == [4, 1]


def test_drafting_on_the_server_needs_no_round_trips_and_is_billed() -> None:
    one = trace(range(1, 8))
    spec = config(algorithms=AlgorithmsConfig(chain_d=(2,))).method("chain@server")
    record = simulator(one).answer(one, spec, 100).request
    round_s = 2 * DRAFT_S + VERIFY_S
    assert record.total_s == pytest.approx(0.5 + PREFILL_S + 2 * round_s)
    assert record.target_busy_s == pytest.approx(PREFILL_S + 2 * round_s)
    assert record.draft_j == 0.0
    assert record.server_draft_s == pytest.approx(4 * DRAFT_S)


def test_the_draft_catches_up_with_what_it_has_not_seen() -> None:
    # One row takes 10 ms, two take 30 ms: a fully accepted chain leaves its last token unseen.
    draft = LatencyTable([1, 2, 3], [10], [[0.01, 0.03, 0.05]])
    one = trace(range(1, 8))
    found = simulator(one, draft=draft).answer(one, chain(2), 100)
    assert [each.draft_s for each in found.rounds] == pytest.approx([0.02, 0.04])


def test_retrieval_alone_copies_what_the_text_repeats() -> None:
    one = trace([1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4], [False] * 12)
    found = simulator(one).answer(one, config().method("lookup"), 100)
    assert max(each.accepted_length for each in found.rounds) >= 2
    assert all(each.draft_s == 0 for each in found.rounds)
    assert found.request.output_ids == one.output_ids


def adaptive(cs: float, **algorithms: Any) -> MethodSpec:
    tree = TreeConfig(proposed_nodes=16, proposed_max_depth=4)
    return config(algorithms=AlgorithmsConfig(**algorithms), tree=tree).adaptive(cs)


def test_autodraft_hands_over_where_rounds_lose_and_costs_what_plain_decoding_does() -> None:
    traces = [trace(range(1, 30), [False] * 29) for _ in range(12)]
    far = simulator(*traces, rtt_ms=10_000.0)
    record = far.answer(traces[0], adaptive(0.0), 100).request
    plain = far.answer(traces[0], config().method("server_only"), 100).request
    assert record.handed_over_tokens == 28
    assert record.total_s == pytest.approx(plain.total_s)
    assert record.target_busy_s == pytest.approx(plain.target_busy_s)


def test_autodraft_drafts_deep_where_every_guess_is_right() -> None:
    traces = [trace(range(1, 30)) for _ in range(12)]
    found = simulator(*traces, rtt_ms=0.0).answer(traces[0], adaptive(0.5), 100)
    assert found.request.handed_over_tokens == 0
    assert max(each.depth for each in found.rounds) == 4
    assert found.request.output_ids == traces[0].output_ids


def test_a_stretch_of_the_server_costs_one_round_trip() -> None:
    # The draft is right at first and never again: rounds begin, and are given up.
    right = [place < 6 for place in range(40)]
    easy = [trace(range(1, 41)) for _ in range(10)]
    hard = trace(range(1, 41), right)
    found = simulator(*easy, hard, rtt_ms=100.0).answer(hard, adaptive(0.0), 100)
    alone, rounds = found.request.handed_over_tokens, found.rounds
    assert alone
    assert rounds
    expected = found.request.ttft_s + sum(each.round_s for each in rounds) + alone * PLAIN_S + 0.1
    assert found.request.total_s == pytest.approx(expected)
    assert len(rounds) + alone == found.request.rounds


def test_the_same_simulation_gives_the_same_records() -> None:
    traces = [trace(range(1, 30), [place % 3 > 0 for place in range(29)]) for _ in range(4)]
    runs = [
        [simulator_.answer(each, adaptive(0.5), 100).request for each in traces]
        for simulator_ in (simulator(*traces, rtt_ms=20.0), simulator(*traces, rtt_ms=20.0))
    ]
    assert runs[0] == runs[1]


def test_without_a_trace_there_is_nothing_to_simulate() -> None:
    with pytest.raises(ConfigError, match="SAVE_TRACE=1"):
        Simulator(place_of(devices(), OBJECTIVE, NetworkSetting()), [])


def test_answers_of_one_token_teach_nothing() -> None:
    one = trace([1])
    with pytest.raises(ConfigError, match="longer"):
        simulator(one).answer(one, adaptive(0.5), 10)


def test_slow_links_take_what_their_bytes_do(tmp_path: Path) -> None:
    one = trace(range(1, 8))
    place = place_of(devices(), OBJECTIVE, NetworkSetting(rtt_ms=0.0, uplink_mbps=0.001))
    found = Simulator(place, [one]).answer(one, chain(2), 100)
    assert found.rounds[0].wait_s == pytest.approx(VERIFY_S + found.rounds[0].uplink_bytes / 125)
