"""The parts of a round add up to it, timers leave no trace, and what is shown follows from both."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autodraft import Autodraft, MethodSpec
from autodraft.engine.drafter import Drafter
from autodraft.engine.rounds import Rounds
from autodraft.engine.worker import ModelWorker
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from autodraft.policy import FixedTreePolicy, TreeLimits
from tests import local_server
from tests.fakes import prompt_of, speculate, tiny_runner
from tests.local_server import LocalServer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPEC = MethodSpec(method="fixed_tree", width=2, max_depth=3, node_budget=5)


@pytest.fixture
def scripts(benchmark_folder: None) -> SimpleNamespace:
    """The benchmark's modules, imported as its script imports them."""
    import _common
    import _round_parts
    import _round_pictures
    import profile_round

    return SimpleNamespace(
        common=_common, parts=_round_parts, pictures=_round_pictures, main=profile_round
    )


@pytest.fixture
def parts(scripts: SimpleNamespace) -> ModuleType:
    module: ModuleType = scripts.parts
    return module


class Clock:
    """Seconds that pass only where a test says so, or one with each look at it."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.looks: list[float] = []
        self._step = step

    def __call__(self) -> float:
        self.now += self._step
        self.looks.append(self.now)
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


def test_what_a_piece_spends_in_another_counts_for_that_one_alone(parts: ModuleType) -> None:
    clock = Clock()
    probe = parts.Probe(clock)
    probe.enabled = True
    leaf = probe.timed(clock.work, "leaf")

    def inner_work() -> str:
        clock.work(2)
        leaf(10)
        leaf(10)
        return "result"

    inner = probe.timed(inner_work, "inner")

    def outer_work() -> str:
        clock.work(1)
        leaf(10)
        return str(inner())

    outer = probe.timed(outer_work, "outer", root=True)
    assert outer() == "result"
    taken = probe.take()
    assert taken == {"leaf": (30, 3), "inner": (2, 1), "outer": (1, 1)}
    assert sum(tally.seconds for tally in taken.values()) == clock.now
    assert probe.take() == {}


def test_only_what_runs_inside_a_root_of_a_probe_that_is_on_counts(parts: ModuleType) -> None:
    clock = Clock()
    probe = parts.Probe(clock)
    leaf = probe.timed(clock.work, "leaf")
    root = probe.timed(leaf, "root", root=True)
    root(1)
    assert probe.take() == {}
    probe.enabled = True
    leaf(1)
    assert probe.take() == {}
    root(1)
    leaf(1)
    assert probe.take() == {"leaf": (1, 1), "root": (0, 1)}


def test_a_piece_that_raises_is_timed_and_its_root_goes_on(parts: ModuleType) -> None:
    clock = Clock()
    probe = parts.Probe(clock)
    probe.enabled = True

    def fail() -> None:
        clock.work(2)
        raise KeyError("x")

    failing = probe.timed(fail, "failing")

    def work() -> None:
        with pytest.raises(KeyError):
            failing()
        clock.work(3)

    probe.timed(work, "root", root=True)()
    assert probe.take() == {"failing": (2, 1), "root": (3, 1)}


def test_a_call_that_belongs_to_no_round_is_left_out(parts: ModuleType) -> None:
    clock = Clock()
    probe = parts.Probe(clock)
    probe.enabled = True

    def work(seconds: float) -> float:
        clock.work(seconds)
        return seconds

    timed = probe.timed(work, "x", root=True, counts=lambda result, _: result > 1)
    assert [timed(1), timed(2)] == [1, 2]
    assert probe.take() == {"x": (2, 1)}


def test_a_stream_is_a_root_that_holds_what_its_consumer_does(parts: ModuleType) -> None:
    clock = Clock()
    probe = parts.Probe(clock)
    probe.enabled = True
    leaf = probe.timed(clock.work, "leaf")

    def produce() -> Iterator[int]:
        for number in range(2):
            leaf(10)
            clock.work(1)
            yield number

    consume = probe.timed(clock.work, "consume")
    for _ in probe.timed_stream(produce, "stream")():
        consume(5)
        clock.work(2)
    leaf(1000)  # outside
    assert probe.take() == {"leaf": (20, 2), "consume": (10, 2), "stream": (6, 1)}


def test_a_stream_that_is_not_taken_to_its_end_leaves_no_root_open(parts: ModuleType) -> None:
    clock = Clock()
    probe = parts.Probe(clock)
    probe.enabled = True
    leaf = probe.timed(clock.work, "leaf")
    stream = probe.timed_stream(lambda: iter([1, 2]), "stream")()
    next(stream)
    leaf(3)
    stream.close()
    leaf(1)
    assert probe.take() == {"leaf": (3, 1), "stream": (0, 1)}


def held(parts: ModuleType) -> list[Any]:
    """Return what every place that gets a timer holds now."""
    pieces = [(p.owner, p.name) for p in (*parts.DRAFT_PIECES, *parts.TARGET_PIECES)]
    places = [*pieces, (Rounds, "decode"), (ModelWorker, "run")]
    return [vars(owner)[name] for owner, name in places]


def test_timers_come_off_and_leave_everything_as_it_was(parts: ModuleType) -> None:
    before = held(parts)
    runner = tiny_runner()
    one, other = parts.Probe(), parts.Probe()
    parts.watch_draft(one)
    parts.watch_target(other)
    parts.watch_runner(one, runner)
    assert all(now is not then for now, then in zip(held(parts), before, strict=True))
    assert "forward" in vars(runner._model)
    other.unwrap()
    one.unwrap()
    assert all(now is then for now, then in zip(held(parts), before, strict=True))
    assert "forward" not in vars(runner._model)


def test_every_piece_belongs_to_a_part_and_every_part_has_a_piece(parts: ModuleType) -> None:
    known = set(parts.DRAFT_PARTS.values()) | set(parts.TARGET_PARTS.values())
    assert known == set(parts.PARTS)
    # One label stands for one piece, so that no tally hides another.
    assert len(parts.DRAFT_PARTS) == len(parts.DRAFT_PIECES) + 2
    assert len(parts.TARGET_PARTS) == len(parts.TARGET_PIECES) + 2


def test_the_parts_of_real_rounds_are_all_of_their_time_and_change_no_token(
    parts: ModuleType,
) -> None:
    target, draft = tiny_runner(), tiny_runner(num_hidden_layers=1)

    def answered() -> Any:
        policy = FixedTreePolicy(TreeLimits(2, 3, 5))
        return speculate(target, Drafter(draft), policy, prompt_of(7), 20)

    plain, clock = answered(), Clock(step=1)
    probe = parts.Probe(clock)
    parts.watch_draft(probe)
    parts.watch_runner(probe, draft)
    try:
        probe.enabled = True
        timed = answered()
    finally:
        probe.unwrap()
    assert timed.tokens == plain.tokens
    taken, rounds = probe.take(), len(timed.request.rounds)
    assert taken["Rounds.decode"].calls == 1
    assert taken["Rounds.record"].calls == taken["Link.request"].calls == rounds
    assert taken["model.forward"].calls == taken["drafter.top_candidates"].calls > rounds
    # Prefill looks at no clock, so the first and the last look are the root's own.
    assert sum(tally.seconds for tally in taken.values()) == clock.looks[-1] - clock.looks[0]
    stacked = parts.stack(taken, {})
    assert sum(stacked.values()) == clock.looks[-1] - clock.looks[0]
    assert stacked["other"] == taken["Rounds.decode"].seconds


def test_both_sides_of_a_real_link_are_timed_apart(
    scripts: SimpleNamespace, tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = scripts.parts
    ours, theirs = parts.Probe(), parts.Probe()

    def load(source: ModelSource) -> LoadedModel:
        model = load_model(source)
        parts.watch_runner(theirs, model.runner)
        return model

    monkeypatch.setattr(local_server, "load_model", load)
    folder, draft = map(str, tiny_pair)
    server = LocalServer(Path(folder), dtype="float32", lazy_load=False)
    try:
        with Autodraft(draft, folder, target_port=server.port, dtype="float32") as engine:
            parts.watch_draft(ours)
            parts.watch_runner(ours, engine._user.side.runner)
            parts.watch_target(theirs)
            ours.enabled = theirs.enabled = True
            result = scripts.main.answer(engine, "a", SPEC, 24)
            ours.enabled = theirs.enabled = False
    finally:
        theirs.unwrap()
        ours.unwrap()
        server.stop()
    drafted, verified, rounds = ours.take(), theirs.take(), len(result.rounds)
    assert rounds > 2
    # One of each in a round: prefill, opening and closing are left out.
    for name in ("Rounds.record", "client.encode", "client.decode_server", "TextStream.push"):
        assert drafted[name].calls == rounds
    for name in ("model.forward", "ModelWorker.run", "server.encode", "server.decode_client"):
        assert verified[name].calls == rounds
    stacked = parts.stack(drafted, verified)
    assert sum(stacked.values()) == pytest.approx(sum(t.seconds for t in drafted.values()))
    assert min(stacked.values()) >= 0
    assert stacked["link"] > 0
    assert 0 < parts.overhead_share(stacked) < parts.overhead_share(stacked, with_link=True) < 1


def tallies(parts: ModuleType, **seconds: float) -> dict[str, Any]:
    return {name.replace("__", "."): parts.Tally(spent, 2) for name, spent in seconds.items()}


def test_the_link_is_what_the_server_does_not_explain_of_the_wait(parts: ModuleType) -> None:
    names = {"model__forward": 40.0, "Link__request": 50.0, "TreeGrowth__best": 6.0}
    draft = tallies(parts, **names, Rounds__decode=4.0)
    target = tallies(parts, model__forward=30.0, verifier__walk=5.0, ModelWorker__run=5.0)
    stacked = parts.stack(draft, target)
    assert sum(stacked.values()) == 100
    assert {name: spent for name, spent in stacked.items() if spent} == {
        "draft_forward": 40,
        "draft_tree": 6,
        "link": 10,
        "hand_over": 5,
        "verify_forward": 30,
        "walk": 5,
        "other": 4,
    }
    assert parts.overhead_share(stacked) == pytest.approx(0.20)
    assert parts.overhead_share(stacked, with_link=True) == pytest.approx(0.30)


def result_of(*round_s: float) -> Any:
    rounds = [SimpleNamespace(round_s=one, emitted_tokens=3, num_nodes=5) for one in round_s]
    return SimpleNamespace(rounds=rounds, token_ids=[1, 2])


def test_figures_are_means_of_all_rounds_and_spreads_of_answers(scripts: SimpleNamespace) -> None:
    parts, main = scripts.parts, scripts.main
    samples = [
        main.Sample(
            tallies(parts, model__forward=one, Link__request=2.0, Rounds__decode=other),
            tallies(parts, model__forward=1.5),
            result_of(2.2, 2.2),
            result_of(*plain),
        )
        for one, other, plain in ((1.0, 1.0, (2.0, 2.0)), (2.0, 0.0, (1.0, 3.0, 2.6)))
    ]
    found = main.figures(samples, timer_cost_s=0.001)
    json.dumps(found, allow_nan=False)
    assert found["rounds"] == 4
    assert found["round_ms"] == 2000  # 8 s in 4 rounds
    assert found["overhead_share"] == found["other_share"] == 0.125
    assert found["overhead_share_spread"] == [0.0, 0.25]
    assert found["with_link_share"] == 0.25
    assert found["median_round_ms"] == 2200
    assert found["plain_median_round_ms"] == 2000
    assert found["plain_round_spread_ms"] == [1000, 3000]
    assert found["slowdown_spread"] == [0.0, 0.1]
    assert found["slowdown_share"] == 0.05
    assert found["probe_share"] == 0.002  # 16 calls of 1 ms in 8 s
    assert found["tokens_per_round"] == 3
    assert sum(part["share"] for part in found["parts"].values()) == pytest.approx(1)
    assert found["parts"]["verify_forward"] == {"ms": 750, "share": 0.375}
    assert found["pieces"]["draft model.forward"] == {"ms": 750, "calls": 1, "us_per_call": 750_000}


def test_a_timer_costs_what_it_adds(parts: ModuleType) -> None:
    assert 0 < parts.timer_cost_s(repeats=200) < 0.01


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        (["--method", "chain", "--depth", "3"], (1, 3, 3)),
        (["--method", "fixed_tree", "--width", "2", "--nodes", "9"], (2, 6, 9)),
        (["--method", "opt_tree", "--depth", "5"], (16, 5, 150)),
    ],
)
def test_the_options_change_the_shape_of_the_method(
    scripts: SimpleNamespace, options: list[str], shape: tuple[int, int, int]
) -> None:
    parser = scripts.main._parser()
    spec = scripts.main.method_of(parser, parser.parse_args(options))
    assert spec.method == options[1]
    assert (spec.width, spec.max_depth, spec.node_budget) == shape


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "chain", "--width", "2"], "give --depth alone"),
        (["--method", "chain", "--nodes", "2"], "give --depth alone"),
        (["--depth", "129"], "at most depth 128 and 1024 nodes"),
        (["--nodes", "1025"], "at most depth 128 and 1024 nodes"),
        (["--native"], "give --flame too"),
        (["--plot", "nowhere/x.png"], "there is no folder"),
        (["--tokens", "0"], "not at least 1"),
    ],
)
def test_what_cannot_be_taken_ends_with_the_usage_and_starts_nothing(
    scripts: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["profile_round.py", *options])
    with pytest.raises(SystemExit) as ended:
        scripts.main.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_missing_package_is_named_before_anything_is_measured(
    scripts: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(scripts.main, "run", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["profile_round.py", "--flame", str(tmp_path / "x.svg")])
    assert scripts.main.main() == 1
    assert "pip install py-spy" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sys, "argv", ["profile_round.py", "--plot", str(tmp_path / "x.png")])
    assert scripts.main.main() == 1
    assert "pip install matplotlib" in capsys.readouterr().err


def fake_py_spy(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    program = folder / "py-spy"
    program.write_text(f"#!{sys.executable}\n{body}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


SAMPLES = """
import pathlib, signal, sys
options = sys.argv[1:]
def end(*_):
    pathlib.Path(options[options.index("--output") + 1]).write_text(" ".join(options))
    sys.exit(ENDS_WITH)
signal.signal(signal.SIGINT, end)
print("py-spy> Sampling process 200 times a second.", flush=True)
while True:
    signal.pause()
"""


def test_every_process_gets_a_flame_graph_of_its_own(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_py_spy(tmp_path, monkeypatch, SAMPLES.replace("ENDS_WITH", "0"))
    graph, ran = tmp_path / "x.svg", []
    with scripts.pictures.flames(graph, {"client": 11, "server": 22}, native=True):
        ran.append(True)
    assert ran
    for side, pid in (("client", 11), ("server", 22)):
        options = (tmp_path / f"x-{side}.svg").read_text()
        assert options.startswith(f"record --pid {pid} ")
        assert options.endswith("--native")


def test_a_sampler_that_may_not_look_says_how_it_may(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_py_spy(tmp_path, monkeypatch, "print('Permission denied'); raise SystemExit(1)")
    flames = scripts.pictures.flames(tmp_path / "x.svg", {"client": 11}, native=False)
    with pytest.raises(scripts.common.CannotMeasure, match=r"Permission denied.*ptrace_scope=0"):
        flames.__enter__()


def test_a_graph_that_cannot_be_written_is_an_error(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_py_spy(tmp_path, monkeypatch, SAMPLES.replace("ENDS_WITH", "'disk full'"))
    flames = scripts.pictures.flames(tmp_path / "x.svg", {"client": 11}, native=False)
    with pytest.raises(scripts.common.CannotMeasure, match="disk full"), flames:
        pass


def test_the_bar_is_drawn(scripts: SimpleNamespace, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scripts.pictures.require_plot()
    scripts.pictures.plot(tmp_path / "bar.png", {"draft_forward": 3.0, "walk": 0.01}, "a round")
    assert (tmp_path / "bar.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(scripts.common.CannotMeasure, match="cannot be written"):
        scripts.pictures.plot(tmp_path / "bar.nothing", {"walk": 0.01}, "a round")


@pytest.mark.embedded
def test_the_script_ends_with_every_figure() -> None:
    options = ["--answers", "1", "--tokens", "12", "--width", "2", "--depth", "2", "--nodes", "4"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "profile_round.py"), *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["benchmark"] == "profile_round"
    assert found["shape"] == {"width": 2, "depth": 2, "nodes": 4}
    assert 0 < found["overhead_share"] < found["with_link_share"] < 1
    assert found["draft_dtype"] == found["target_dtype"]
    shares = [part["share"] for part in found["parts"].values()]
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    milliseconds = [part["ms"] for part in found["parts"].values()]
    assert sum(milliseconds) == pytest.approx(found["round_ms"], abs=0.01)
