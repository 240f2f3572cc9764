"""The memory benchmark computes what it says."""

import json
import multiprocessing
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autodraft import MethodSpec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def memory(benchmark_folder: None) -> ModuleType:
    """The benchmark's module, imported as its script imports what lies beside it."""
    import memory as benchmark

    module: ModuleType = benchmark
    return module


def test_help_names_its_options() -> None:
    command = [sys.executable, str(BENCHMARKS / "memory.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    for option in ("--quick", "--seed", "--dtype"):
        assert option in done.stdout


class TestJobs:
    def test_every_method_is_as_frequent_as_another(self, memory: ModuleType) -> None:
        made = memory.jobs(200, seed=3)
        assert len(made) == 200
        assert {m: sum(job.method == m for job in made) for m in memory.METHODS} == dict.fromkeys(
            memory.METHODS, 40
        )

    def test_the_longest_prompts_come_first_and_most_lengths_occur_once(
        self, memory: ModuleType
    ) -> None:
        made = memory.jobs(200, seed=3)
        first = made[: len(memory.METHODS)]
        assert {job.method for job in first} == set(memory.METHODS)
        assert {job.prompt_tokens for job in first} == {memory.LONGEST}
        lengths = [job.prompt_tokens for job in made[len(first) :]]
        assert min(lengths) >= memory.SHORTEST
        assert max(lengths) <= memory.LONGEST
        assert len(set(lengths)) > len(lengths) // 2

    def test_a_seed_makes_the_same_requests_again_and_another_makes_others(
        self, memory: ModuleType
    ) -> None:
        assert memory.jobs(30, seed=1) == memory.jobs(30, seed=1)
        assert memory.jobs(30, seed=1) != memory.jobs(30, seed=2)

    def test_fewer_requests_are_the_first_of_more(self, memory: ModuleType) -> None:
        assert memory.jobs(200, seed=0)[:40] == memory.jobs(40, seed=0)

    def test_a_prompt_has_exactly_the_tokens_wanted(self, memory: ModuleType) -> None:
        words = SimpleNamespace(
            encode_text=lambda text: text.split()
        )  # the fewest tokens there are
        for length in (memory.SHORTEST, 17, memory.LONGEST):
            assert len(memory.prompt(words, memory.Job("chain", length, seed=length))) == length


class TestLimit:
    def test_it_is_the_weights_and_a_bit_the_cache_and_300_mb(self, memory: ModuleType) -> None:
        model = memory.Model(weights_bytes=200_000_000, bytes_per_token=1_000)
        assert memory.limit_bytes(model, 2_000) == 230_000_000 + 2_000_000 + 300_000_000

    def test_the_largest_cache_is_what_the_engine_allocates(self, memory: ModuleType) -> None:
        specs = {
            "server_only": MethodSpec(method="server_only", width=0, max_depth=0, node_budget=0),
            "fixed_tree": MethodSpec(method="fixed_tree", width=8, max_depth=6, node_budget=32),
        }
        jobs = [memory.Job("server_only", 900, 0), memory.Job("fixed_tree", 500, 0)]
        plain, tree = memory.TOKENS + 1 + 900, memory.TOKENS + 1 + 500
        assert memory.cache_tokens(jobs, specs) == {"target": plain, "client": tree + 48}
        assert memory.cache_tokens(jobs[1:], specs) == {"target": tree + 32, "client": tree + 48}
        assert memory.cache_tokens(jobs[:1], specs) == {"target": plain, "client": 0}


class TestFigures:
    MODEL: Any = {"weights_bytes": 100_000_000, "bytes_per_token": 10_000}

    def one(self, memory: ModuleType, held: dict[int, tuple[int, int]]) -> dict[str, Any]:
        mb = memory.MB
        samples = {number: memory.Held(own * mb, rss * mb) for number, (own, rss) in held.items()}
        figures: dict[str, Any] = memory.side_figures(
            samples, memory.Model(**self.MODEL), tokens=500, early=50
        )
        return figures

    def test_growth_is_the_slope_from_the_early_sample_on(self, memory: ModuleType) -> None:
        assert memory.growth_bytes({50: 7, 100: 107, 150: 207}) == pytest.approx(2.0)
        found = self.one(memory, {0: (90, 90), 50: (400, 500), 100: (401, 501), 150: (402, 502)})
        assert found["growth_kb_per_request"] == pytest.approx(20.0)

    def test_a_process_below_its_limit_that_stays_where_it_is_has_held_it(
        self, memory: ModuleType
    ) -> None:
        found = self.one(memory, {0: (300, 400), 50: (400, 530), 200: (401, 531)})
        assert found["limit_mb"] == 115 + 5 + 300
        assert (found["weights_mb"], found["kv_mb"]) == (100, 5)
        assert found["mb"] == {"0": 300, "50": 400, "200": 401}
        assert found["rss_mb"]["200"] == 531
        assert found["within_limit"]
        assert not found["rss_within_limit"]
        assert found["flat"]

    def test_growth_above_a_hundredth_is_not_flat(self, memory: ModuleType) -> None:
        assert self.one(memory, {50: (400, 500), 200: (404, 500)})["flat"]
        assert not self.one(memory, {50: (400, 500), 200: (405, 500)})["flat"]
        assert self.one(memory, {50: (400, 500), 200: (380, 500)})["flat"]

    def test_the_limit_is_judged_at_the_end(self, memory: ModuleType) -> None:
        assert self.one(memory, {50: (430, 500), 200: (420, 500)})["within_limit"]
        assert not self.one(memory, {50: (400, 500), 200: (421, 500)})["within_limit"]

    def test_both_processes_must_hold_and_the_table_shows_both(
        self, memory: ModuleType, capsys: pytest.CaptureFixture[str]
    ) -> None:
        good = self.one(memory, {0: (300, 310), 50: (400, 410), 200: (400, 410)})
        fat = self.one(memory, {0: (300, 310), 50: (450, 460), 200: (451, 461)})
        both = memory.figures({"client": good, "target": fat}, 50, 200)
        assert both["client_mb_50"] == both["client_mb_200"] == 400
        assert (both["target_mb_50"], both["target_mb_200"]) == (450, 451)
        assert both["target_rss_mb_200"] == 461
        assert both["client_limit_mb"] == both["target_limit_mb"] == 420
        assert (both["within_limit"], both["rss_within_limit"], both["flat"]) == (
            False,
            False,
            True,
        )
        assert memory.figures({"client": good, "target": good}, 50, 200)["rss_within_limit"]
        json.dumps(both, allow_nan=False)
        memory.report({"client": good, "target": fat}, [0, 50, 200])
        shown = capsys.readouterr().out
        assert (
            "client: limit 420 MB = 1.15 x 100.0 weights + 5.0 largest cache + 300: held" in shown
        )
        assert (
            "target: limit 420 MB = 1.15 x 100.0 weights + 5.0 largest cache + 300: miss" in shown
        )


class TestProcesses:
    def test_a_process_holds_what_it_has_written_and_is_looked_at_from_outside(
        self, memory: ModuleType
    ) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=hold, args=(there,), daemon=True)
        process.start()
        try:
            assert here.recv() == "started"
            before = memory.Held.by(process.pid)
            here.send(64 * memory.MB)
            assert here.recv() == "held"
            after = memory.Held.by(process.pid)
        finally:
            here.close()
            process.join()
        grown = after.private_bytes - before.private_bytes
        assert 60 * memory.MB < grown < 80 * memory.MB
        assert after.rss_bytes >= after.private_bytes

    def test_a_process_that_has_ended_cannot_be_measured(self, memory: ModuleType) -> None:
        process = multiprocessing.get_context("spawn").Process(target=print)
        process.start()
        process.join()
        assert process.pid is not None
        with pytest.raises(memory.common.CannotMeasure, match="cannot be looked at"):
            memory.Held.by(process.pid)

    def test_what_a_client_cannot_do_is_told(self, memory: ModuleType) -> None:
        here, there = multiprocessing.Pipe()
        client = memory.Client(1, here)
        there.send(None)
        client.wait()
        there.send("the server refuses")
        with pytest.raises(memory.common.CannotMeasure, match="cannot go on: the server refuses"):
            client.run(memory.Job("chain", 20, 0))
        assert there.recv() == memory.Job("chain", 20, 0)
        there.close()
        with pytest.raises(memory.common.CannotMeasure, match="process has ended"):
            client.run(memory.Job("chain", 20, 0))

    def test_a_client_without_a_server_says_so(self, memory: ModuleType) -> None:
        here, there = multiprocessing.Pipe()
        memory.serve(there, 1, "auto")
        assert "127.0.0.1:1" in here.recv()


def hold(link: Connection) -> None:
    """Hold as many bytes as are asked for, until the other end is closed."""
    link.send("started")
    held = b"x" * link.recv()
    link.send("held")
    link.poll(60)
    del held
