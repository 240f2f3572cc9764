"""The benchmarks of plain decoding and of contexts: what follows from times, bytes and readings."""

import importlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.records import RoundRecord
from tests.benchmark_process import BENCHMARKS, run
from tests.fakes import SHARP, LoopbackLink, prompt_of, tiny_model, tiny_runner
from tests.unit.evaluation_fakes import ROUND, make_record

pytestmark = pytest.mark.usefixtures("benchmark_folder")

MIB = 2**20


@pytest.fixture
def decode() -> ModuleType:
    import server_decode

    return server_decode


@pytest.fixture
def stock() -> ModuleType:
    import _stock_generate

    return _stock_generate


@pytest.fixture
def contexts() -> ModuleType:
    import contexts

    return contexts


@pytest.fixture
def common() -> ModuleType:
    import _common

    return _common


# server_decode


def turn_of(decode: ModuleType, ours_s: float, *, ttft_s: float = 0.5) -> Any:
    """Return answers of five tokens: ours within ``ours_s``, the others' within 2.5 and 4.5 s."""
    ids = (1, 2, 3, 4, 5)
    return {
        decode.OURS: decode.Answer(ids, ttft_s, ours_s),
        decode.STOCK: decode.Answer(ids, 0.5, 2.5),
        decode.STOCK_SET: decode.Answer(ids, 0.5, 4.5),
    }


def bandwidth_of(*rates: float) -> Any:
    import _bandwidth

    return _bandwidth.Bandwidth(*([rate] for rate in rates))


def test_speed_is_with_prefill_and_time_per_token_without(decode: ModuleType) -> None:
    answer = decode.Answer((7, 8, 9, 10, 11), ttft_s=0.5, total_s=2.5)
    assert answer.tokens_per_s == 2.0
    assert answer.tpot_s == 0.5


def test_ratios_are_of_equal_turns_and_the_figure_of_merit_is_of_decoding(
    decode: ModuleType,
) -> None:
    turns = [turn_of(decode, 1.5)] * 3
    found = decode.figures(turns, bandwidth_of(8e9, 4e9, 16e9), 1_000_000_000, seed=1)
    assert found["server_only_tokens_per_s"] == pytest.approx(5 / 1.5, abs=1e-4)
    assert found["server_only_decode_tokens_per_s"] == 4.0
    assert found["generate_tokens_per_s"] == 2.0
    assert found["generate_tpot_ms"] == 500.0
    assert found["generate_ttft_ms"] == 500.0
    assert found["ratio"] == found["ratio_low"] == found["ratio_high"]
    assert found["ratio"] == pytest.approx(2.5 / 1.5, abs=1e-4)
    assert found["decode_ratio"] == 2.0
    assert found["set_ratio"] == 3.0
    assert found["set_decode_ratio"] == 4.0
    # Four tokens a second read four times a gigabyte of weights.
    assert found["weights_gb_per_s"] == 4.0
    assert (found["copy_gb_per_s"], found["read_gb_per_s"]) == (8.0, 4.0)
    assert found["share_of_copy"] == 0.5
    assert found["share_of_read"] == 1.0
    assert found["share_of_read_again"] == 0.25
    assert found["limit_tokens_per_s"] == 4.0
    assert found["identical_share"] == found["generate_set_identical_share"] == 1.0


def test_the_report_shows_what_the_figures_hold(
    decode: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [turn_of(decode, 1.5)] * 2
    decode.report(decode.figures(turns, bandwidth_of(8e9, 4e9, 16e9), 1_000_000_000, seed=0))
    shown = capsys.readouterr().out
    assert "1.667 (1.667 - 1.667)" in shown
    assert "a plain read allows 4.0 tokens/s" in shown
    assert "50.0%" in shown


def test_the_interval_holds_the_median_and_is_the_same_for_one_seed(decode: ModuleType) -> None:
    values = [0.9, 1.0, 1.1, 1.2, 3.0]
    low, high = decode.interval(values, seed=4)
    assert 0.9 <= low <= 1.1 <= high <= 3.0
    assert low < high
    assert decode.interval(values, seed=4) == (low, high)


def test_answers_in_float32_must_be_equal_and_others_are_counted(
    decode: ModuleType, common: ModuleType
) -> None:
    equal, different = turn_of(decode, 1.5), turn_of(decode, 1.5)
    different[decode.OURS] = decode.Answer((1, 2, 3, 4, 6), 0.5, 1.5)
    decode.require_equal([equal])
    with pytest.raises(common.CannotMeasure, match="^server_only does not answer as generate does"):
        decode.require_equal([equal, different])
    assert decode.identical_share([equal, different], decode.OURS) == 0.5
    assert decode.identical_share([equal, different], decode.STOCK_SET) == 1.0


def sides_of(decode: ModuleType, calls: list[str], **early: int) -> dict[str, Any]:
    """Return sides that answer with as many tokens as asked, but ``early`` for prompts of a 0."""

    def side(name: str) -> Any:
        def ask(prompt: Sequence[int], tokens: int) -> Any:
            calls.append(name)
            count = early.get(name, tokens) if 0 in prompt else tokens
            return decode.Answer(tuple(range(count)), 0.1, 1.0)

        return ask

    return {name: side(name) for name in decode.SIDES}


def test_only_prompts_count_that_every_side_answers_to_the_limit(
    decode: ModuleType, common: ModuleType
) -> None:
    candidates = [[0, 1], [2], [0, 3], [4], [5]]
    sides = sides_of(decode, [], generate=7)
    assert decode.chosen_prompts(sides, candidates, 2, tokens=8) == [[2], [4]]
    with pytest.raises(common.CannotMeasure, match="Only 3 of 5 prompts .* 8 tokens, and 4"):
        decode.chosen_prompts(sides, candidates, 4, tokens=8)


def test_each_turn_asks_every_side_and_begins_with_another(
    decode: ModuleType, common: ModuleType
) -> None:
    calls: list[str] = []
    sides = sides_of(decode, calls)
    turns = list(decode.measure(sides, [[1], [2]], repeats=4, tokens=3))
    assert len(turns) == 8
    assert all(set(turn) == set(decode.SIDES) for turn in turns)
    ours, stock, stock_set = decode.SIDES
    assert calls[:9] == [ours, stock, stock_set, stock, stock_set, ours, stock_set, ours, stock]
    early = sides_of(decode, [], server_only=2)
    with pytest.raises(common.CannotMeasure, match="server_only answered with 2 tokens instead"):
        list(decode.measure(early, [[0]], repeats=1, tokens=3))


def test_plain_operations_are_timed_over_the_bytes_that_they_move() -> None:
    import _bandwidth

    bandwidth = _bandwidth.Bandwidth()
    for _ in range(2):
        _bandwidth.measure(bandwidth, weights_bytes=4096, copy_bytes=8192)
    for rates in (bandwidth.copy, bandwidth.read, bandwidth.read_again):
        assert len(rates) == 2 * _bandwidth.REPEATS
        assert min(rates) > 0


def test_what_is_left_open_is_decided_by_quick_and_the_processor(
    decode: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "native_bfloat16", lambda: True)
    monkeypatch.setattr(sys, "argv", ["server_decode.py", "--quick", "--repeats", "9"])
    found = decode.settings_of(decode._arguments())
    assert (found["tokens"], found["prompts"], found["repeats"]) == (*decode.QUICK[:2], 9)
    assert found["dtype"] == "bfloat16"
    monkeypatch.setattr(decode, "native_bfloat16", lambda: False)
    monkeypatch.setattr(sys, "argv", ["server_decode.py", "--seed", "5"])
    found = decode.settings_of(decode._arguments())
    assert (found["tokens"], found["prompts"], found["repeats"]) == decode.FULL
    assert (found["dtype"], found["seed"]) == ("float32", 5)


WORKER = """
import json, os, sys
print(json.dumps({"weights_bytes": 12, "threads": 1}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["tokens"] == 13:
        raise SystemExit("no more " + sys.argv[2])
    ids = asked["prompt"] + [int(os.environ.get("GOMP_SPINCOUNT", 0))]
    print(json.dumps({"token_ids": ids, "ttft_s": 1.0, "total_s": 2.0}), flush=True)
"""


def test_generate_runs_in_a_process_with_the_environment_that_it_is_given(
    decode: ModuleType, common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(decode, "WORKER", worker)
    environment = dict(os.environ) | {"GOMP_SPINCOUNT": "77"}
    with decode.stock_generate(tmp_path, "float32", environment) as (ask, weights_bytes):
        assert weights_bytes == 12
        assert ask([5, 6], 3) == decode.Answer((5, 6, 77), 1.0, 2.0)
        with pytest.raises(common.CannotMeasure, match="no more float32"):
            ask([5], 13)
        with pytest.raises(common.CannotMeasure, match="has ended"):
            ask([5], 3)


def test_the_process_of_generate_knows_nothing_of_ours() -> None:
    text = (BENCHMARKS / "_stock_generate.py").read_text()
    imports = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert not [line for line in imports if "autodraft" in line or "_common" in line]


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_all_weights_but_an_embedding_of_its_own(
    stock: ModuleType, tied: bool
) -> None:
    model = tiny_model(tie_word_embeddings=tied)
    whole = sum(weight.nbytes for weight in model.parameters())
    embedding = model.get_input_embeddings().weight.nbytes
    assert stock.streamed_bytes(model) == (whole if tied else whole - embedding)


class StockModel:
    """Answers with the prompt's last token, again and again, as ``generate`` hands it out."""

    def generate(self, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        assert options["do_sample"] is False
        assert options["attention_mask"].shape == ids.shape
        streamer, made = options["streamer"], [ids]
        streamer.put(ids)
        for _ in range(options["max_new_tokens"]):
            made.append(ids[:, -1:])
            streamer.put(made[-1][0])
        streamer.end()
        return torch.cat(made, dim=1)


@pytest.mark.parametrize("tokens", [1, 3])
def test_generate_is_timed_to_its_first_and_its_last_token(
    stock: ModuleType, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr(stock, "time", clock)
    found = stock.answer(StockModel(), [4, 9], tokens)
    assert found["token_ids"] == [9] * tokens
    assert found["ttft_s"] == 2.0  # the clock goes on by one with the prompt and with each token
    assert found["total_s"] == 1.0 + tokens


def test_a_server_that_does_not_come_up_ends_with_its_own_words(common: ModuleType) -> None:
    import _live_target

    refused = pytest.raises(common.CannotMeasure, match=r"did not come up:\n[\s\S]*--no-such")
    with refused, _live_target.live_target("--no-such-option"):
        pass


# contexts


def round_at(number: int, context: int, **changes: float) -> RoundRecord:
    return msgspec.structs.replace(ROUND, round=number, context_tokens=context, **changes)


def answer_of(contexts: ModuleType, *server_mb: float, prompt: int = 20) -> Any:
    """Return an answer whose server has so many MiB at its three readings; the client has 50."""
    rounds = [
        round_at(number, prompt + 1 + 5 * number, wait_s=0.4, verify_s=0.3, round_s=1.0)
        for number in range(3)
    ]
    record = make_record(
        "fixed_tree", prompt_tokens=prompt, ttft_s=2.0, draft_s=1.75, target_busy_s=2.4
    )
    readings = tuple(
        contexts.Reading(prompt + tokens, contexts.Private(50 * MIB, int(used * MIB)))
        for tokens, used in zip((1, 6, 16), server_mb, strict=True)
    )
    return contexts.Answer(record, rounds, readings)


def test_prefill_is_what_the_rounds_did_not_take(contexts: ModuleType) -> None:
    answer = answer_of(contexts, 100, 100, 100)
    assert answer.draft_prefill_s == pytest.approx(0.25)
    assert answer.target_prefill_s == pytest.approx(1.5)


def test_rounds_without_room_for_the_whole_tree_are_left_out(contexts: ModuleType) -> None:
    answer = answer_of(contexts, 100, 100, 100)
    # Rounds begin behind 1, 6 and 11 tokens of the answer, and the bonus token takes one.
    assert [one.round for one in answer.full_rounds(12 + contexts.DEPTH)] == [0, 1, 2]
    assert [one.round for one in answer.full_rounds(11 + contexts.DEPTH)] == [0, 1]


@pytest.mark.parametrize(("last_mb", "unexplained_mb"), [(90, 0), (120, 0), (121, 1), (150, 30)])
def test_growth_counts_beyond_the_keys_and_values_of_new_tokens(
    contexts: ModuleType, last_mb: float, unexplained_mb: float
) -> None:
    answer = answer_of(contexts, 60, 110, last_mb)
    per_token = contexts.Private(1, MIB)  # ten tokens come between the second and third reading
    growth = answer.growth("server", per_token)
    assert growth.whole == (last_mb - 110) * MIB
    assert growth.new_tokens == 10 * MIB
    assert growth.unexplained == unexplained_mb * MIB
    assert answer.growth("client", per_token).unexplained == 0


def test_figures_show_the_answer_that_grew_most_and_the_longest_against_the_shortest(
    contexts: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    flat, grown = answer_of(contexts, 90, 95, 96), answer_of(contexts, 91, 96, 110)
    longer = answer_of(contexts, 90, 95, 96, prompt=40)
    slow = [msgspec.structs.replace(one, round_s=3.0) for one in longer.rounds]
    longer = contexts.Answer(longer.record, slow, longer.readings)
    answers = {20: [flat, grown], 64: [longer]}
    found = contexts.figures(answers, tokens=30, bytes_per_token=contexts.Private(8, MIB))
    assert found["round_ratio"] == 3.0
    assert found["worst_server_unexplained_mb"] == 4.0
    assert found["worst_client_unexplained_mb"] == 0.0
    short = found["contexts"]["20"]
    readings = [short[f"server_private_mb_{name}"] for name in ("prefilled", "first", "last")]
    assert readings == [91.0, 96.0, 110.0]
    assert short["server_growth_mb"] == 14.0
    assert short["prefill_s"] == 2.0
    assert short["prefill_tokens_per_s"] == 10.0
    assert (short["draft_ms"], short["verify_ms"], short["round_ms"]) == (500.0, 300.0, 1000.0)
    assert short["link_ms"] == pytest.approx(100.0)
    assert short["cache_bytes"] == 50 * MIB
    assert short["draft_cache_bytes"] == 50 * 8
    assert short["rounds"] == 6
    contexts.report(found)
    shown = capsys.readouterr().out
    assert "64 (cut to 40)" in shown
    assert "+14.00" in shown


def test_a_context_is_cut_to_what_the_pair_can_take(
    contexts: ModuleType, common: ModuleType
) -> None:
    assert contexts.fitting(128, 64, 8192) == 128
    assert contexts.fitting(8192, 64, 8192) == 8192 - 64 - contexts.DEPTH
    with pytest.raises(common.CannotMeasure, match="no room for a prompt in the 64 tokens"):
        contexts.fitting(128, 64, 64)


def test_prompts_go_round_the_text(contexts: ModuleType) -> None:
    prompts = contexts.prompts_of([0, 1, 2, 3, 4], 3, start=9)
    assert list(itertools.islice(prompts, 3)) == [[4, 0, 1], [2, 3, 4], [0, 1, 2]]


def pair_of(contexts: ModuleType, **welcome: Any) -> Any:
    """Return a pair whose target is its own draft, so that every round accepts a full depth."""
    runner = tiny_runner(scale=SHARP)
    used = itertools.count(1)
    target = RemoteTarget(LoopbackLink(runner, **welcome), TargetWish("loopback"))
    read = lambda: contexts.Private(next(used), 0)  # noqa: E731
    return contexts.Pair(target, SimpleNamespace(runner=runner), read)


def test_memory_is_read_behind_the_prefill_the_first_rounds_and_the_last(
    contexts: ModuleType,
) -> None:
    block, prompt = contexts.DEPTH + 1, prompt_of(10)
    answer = contexts.ask(pair_of(contexts), prompt, 1 + 9 * block)
    first, early, last = answer.readings
    assert len(answer.rounds) == 9
    assert first.tokens == 11
    assert early.tokens == 11 + contexts.FIRST_ROUNDS * block
    assert last.tokens == 11 + 9 * block == 10 + len(answer.record.output_ids)
    assert [one.private.client for one in answer.readings] == [1, 2, 3]


def test_answers_of_too_few_rounds_are_asked_again_elsewhere(
    contexts: ModuleType, common: ModuleType
) -> None:
    pair = pair_of(contexts)
    block = contexts.DEPTH + 1
    asked: list[int] = []

    def prompts() -> Iterator[list[int]]:
        for seed in itertools.count():
            asked.append(seed)
            yield prompt_of(10, seed)

    tokens = 1 + contexts.LEAST_ROUNDS * block
    assert len(contexts.ask_at_length(pair, prompts(), tokens).rounds) == contexts.LEAST_ROUNDS
    assert asked == [0]
    with pytest.raises(common.CannotMeasure, match="None of .* longer ones with --tokens"):
        contexts.ask_at_length(pair, prompts(), tokens - block)
    assert asked == [0, *range(contexts.TRIES)]


def test_private_memory_is_read_of_both_processes(contexts: ModuleType) -> None:
    used = contexts.memory_reader(os.getpid())()
    assert used.client > MIB
    assert used.server > MIB
    block = bytearray(8 * MIB)
    assert contexts.memory_reader(os.getpid())().client >= used.client + 7 * MIB
    del block


def test_a_process_that_has_ended_cannot_be_looked_at(contexts: ModuleType) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(contexts.common.CannotMeasure):
        contexts.memory_reader(ended.pid)


# both


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("server_decode", "--tokens=1"),
        ("server_decode", "--prompts=0"),
        ("server_decode", "--dtype=float8"),
        ("contexts", "--contexts=0"),
        ("contexts", "--repeats=-1"),
    ],
)
def test_a_bad_value_ends_with_the_usage_and_no_json(
    name: str,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", option])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert "usage:" in shown.err
    assert option.partition("=")[0] in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("name", ["server_decode", "contexts"])
def test_what_cannot_be_measured_ends_with_a_reason_and_no_json(
    name: str,
    common: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise common.CannotMeasure("No server today.")

    module = importlib.import_module(name)
    monkeypatch.setattr(module, "run", fail)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick"])
    assert module.main() == 1
    shown = capsys.readouterr()
    assert shown.err == f"{name}: No server today.\n"
    assert '"benchmark"' not in shown.out


@pytest.mark.embedded
def test_server_decode_answers_as_generate_does_and_ends_with_every_figure() -> None:
    sizes = ("--tokens", "4", "--prompts", "1", "--repeats", "1")
    done = run("server_decode.py", "--dtype", "float32", "--seed", "3", *sizes)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["benchmark"] == "server_decode"
    assert (figures["tokens"], figures["dtype"], figures["seed"]) == (4, "float32", 3)
    assert figures["identical_share"] == figures["generate_set_identical_share"] == 1.0
    assert 0 < figures["ratio_low"] <= figures["ratio"] <= figures["ratio_high"]
    per_token = figures["weights_gb_per_s"] / figures["server_only_decode_tokens_per_s"]
    assert per_token == pytest.approx(figures["weights_bytes"] / 1e9, rel=1e-3)


@pytest.mark.embedded
def test_contexts_ends_with_every_figure_of_every_context() -> None:
    sizes = ("--contexts", "24", "16", "--repeats", "1", "--tokens", "80")
    done = run("contexts.py", "--seed", "3", *sizes)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["benchmark"] == "contexts"
    assert set(figures["contexts"]) == {"16", "24"}
    for context, one in figures["contexts"].items():
        assert one["prompt_tokens"] == int(context)
        assert one["round_ms"] >= one["verify_ms"] > 0
        assert one["client_private_mb_last"] > 0
        assert one["server_private_mb_last"] > 0
