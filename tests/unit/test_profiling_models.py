"""What is timed of tiny models, here, on a server and over a link; and who measures when."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autodraft.config import ServerConfig
from autodraft.engine import profiler
from autodraft.engine.profiler import (
    draft_table,
    measure_draft,
    measure_link,
    measure_target,
    served_table,
    target_table,
)
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.timers import FarTarget, OwnTarget
from autodraft.errors import ProfileError, RemoteError
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from autodraft.models.rows import SIZES
from autodraft.models.runner import ModelRunner
from autodraft.profiling.store import profile_path, read_table
from autodraft.protocol import messages as msg
from autodraft.transport.client import Link
from autodraft.transport.shaping import LinkShape
from tests.fakes import VOCAB, LoopbackLink, save_tiny_model, tiny_runner
from tests.local_server import LocalServer

pytestmark = pytest.mark.usefixtures("one_thread")

WISH = TargetWish("autodraft")
TEN_MBPS = 10e6 / 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(ModelSource(str(folder), dtype="float32"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LocalServer]:
    running = LocalServer(folder, max_nodes=64, dtype="float32")
    yield running
    running.stop()


def connected(server: LocalServer, **shape: float) -> RemoteTarget:
    return RemoteTarget(Link("127.0.0.1", server.port, None, LinkShape(**shape)), WISH)  # type: ignore[arg-type]


def loopback(eos_ids: tuple[int, ...] = (), **welcome: Any) -> tuple[RemoteTarget, LoopbackLink]:
    link = LoopbackLink(tiny_runner(), eos_ids, **welcome)
    return RemoteTarget(link, WISH), link


def sent(link: LoopbackLink, kind: type[Any]) -> list[Any]:
    return [message for message in link.sent if isinstance(message, kind)]


# ------------------------------------------------------------------------------ what is timed


def test_a_draft_is_timed_at_its_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = tiny_runner()
    rows: list[int] = []
    forward = ModelRunner.forward

    def watched(self: ModelRunner, cache: Any, tokens: Any, positions: Any, visible: Any) -> Any:
        rows.append(len(tokens))
        assert set(positions.tolist()) == {cache.length}
        assert cache.length in (128, 768)
        assert (visible == np.eye(len(tokens))).all()
        return forward(self, cache, tokens, positions, visible)

    monkeypatch.setattr(ModelRunner, "forward", watched)
    table = measure_draft(runner, (1, 3), calls=2)
    assert table.rows.tolist() == [1, 3]
    assert table.contexts.tolist() == [128, 768]
    assert set(rows) == {1, 3}
    assert len(rows) >= 2 * 2 * (2 + 2)


def test_a_runner_tells_what_it_pads_to(loaded: LoadedModel) -> None:
    assert loaded.runner.padding == (SIZES if loaded.runner._pads else ())
    assert tiny_runner().padding in ((), SIZES)


def test_a_key_says_all_that_speed_depends_on(loaded: LoadedModel) -> None:
    for part in (
        "1 threads",
        "float32",
        "quantisation none",
        "torch ",
        "transformers ",
        "autodraft ",
    ):
        assert part in loaded.profile_key


def test_an_own_target_is_timed_behind_contexts_of_the_right_length() -> None:
    runner = tiny_runner()
    timer = OwnTarget(runner, np.arange(VOCAB), 8)
    for _ in range(100):
        assert timer(9, 128) > 0
        assert timer._verifier is not None
        assert timer._verifier.finish is None
        assert 112 <= timer._verifier._cache.length <= 146
    timer(1, 500)
    assert 484 <= timer._verifier._cache.length <= 518
    timer.close()


def test_a_target_is_timed_over_the_link_by_its_own_clock() -> None:
    target, link = loopback()
    table = measure_target(target, (1, 4, 200), calls=3)
    # 200 nodes are more than there are tokens for a star; the root is a row too.
    assert table.rows.tolist() == [1, 2, 5]
    assert (table.seconds == 10.0).all()  # what the fake target claims: 10,000,000 us
    nodes = [len(message.nodes) // 4 for message in sent(link, msg.Verify)]
    assert set(nodes) == {0, 1, 4}
    assert len(nodes) == 2 * 3 * (2 + 3)
    assert len(sent(link, msg.Open)) == len(sent(link, msg.Close)) >= 2
    prompts = {len(message.tokens) // 3 for message in sent(link, msg.Prefill)}
    assert prompts == {112, 752}


def test_an_answer_that_ends_goes_on_in_another_session() -> None:
    eos_ids = tuple(range(0, VOCAB, 4))  # one token in four ends the answer
    target, link = loopback(eos_ids)
    assert measure_target(target, (4,), calls=10).rows.tolist() == [1, 5]
    assert len(sent(link, msg.Open)) > 4
    assert len(sent(link, msg.Open)) == len(sent(link, msg.Close))


def test_a_target_that_says_nothing_but_the_end_cannot_be_timed() -> None:
    target, _ = loopback(tuple(range(VOCAB)))
    with pytest.raises(ProfileError, match="--enable-auto-target-profile"):
        measure_target(target, (4,), calls=10)


def test_special_tokens_are_in_no_prompt_and_no_tree() -> None:
    special = dict.fromkeys(range(100), "x")
    alphabet = profiler._alphabet(loopback((100,), added_tokens=special)[0].welcome)
    assert alphabet.tolist() == list(range(101, VOCAB))
    target, _ = loopback((100,), added_tokens=special)
    timer = FarTarget(target, alphabet, 27)
    assert timer(28, 50) == 10.0
    timer.close()


@pytest.mark.parametrize(("fields", "rows"), [({"max_nodes": 3}, [1, 3]), ({"max_depth": 0}, [1])])
def test_what_the_server_refuses_is_not_timed(fields: dict[str, int], rows: list[int]) -> None:
    target, _ = loopback(**fields)
    assert measure_target(target, (2, 4), calls=1).rows.tolist() == rows


def test_a_context_that_is_too_short_is_an_error() -> None:
    target, _ = loopback(max_context=36)
    with pytest.raises(ProfileError, match="36 tokens"):
        measure_target(target, (4,), calls=1)
    target, _ = loopback(max_context=37)
    assert measure_target(target, (4,), calls=1).contexts.tolist() == [17]


# ------------------------------------------------------------------------------ who measures when


def test_a_draft_is_measured_once_and_then_read(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = draft_table(loaded, tmp_path, (1, 2), 1)
    assert read_table(tmp_path, "draft", loaded.profile_key) is not None
    monkeypatch.setattr(profiler, "measure_draft", lambda *_: pytest.fail("measured again"))
    again = draft_table(loaded, tmp_path, (1, 2), 1)
    assert again.seconds.tolist() == first.seconds.tolist()


def test_a_stored_profile_is_measured_again_on_demand_and_for_other_sizes(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft_table(loaded, tmp_path, (1, 2), 1)
    measured: list[int] = []

    def count(runner: ModelRunner, widths: tuple[int, ...], calls: int) -> Any:
        measured.append(len(widths))
        return measure_draft(runner, widths, calls)

    monkeypatch.setattr(profiler, "measure_draft", count)
    draft_table(loaded, tmp_path, (1, 2), 1, refresh=True)
    assert measured == [2]
    draft_table(loaded, tmp_path, (1, 2, 300), 1, allowed=False)  # better than nothing
    assert measured == [2]
    draft_table(loaded, tmp_path, (1, 2, 300), 1)
    assert measured == [2, 3]


def test_a_missing_profile_that_must_not_be_measured_is_an_error(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    with pytest.raises(ProfileError, match=r"DISABLE_AUTO_PROFILE=1.*python -m autodraft profile"):
        draft_table(loaded, tmp_path, (1, 2), 1, allowed=False)
    target, _ = loopback(profile="a GPU")
    with pytest.raises(ProfileError, match="target 'loopback a GPU'"):
        target_table(target, tmp_path, (1, 2), 1, allowed=False)


def test_a_damaged_profile_is_overwritten_by_a_refresh(loaded: LoadedModel, tmp_path: Path) -> None:
    profile_path(tmp_path, "draft", loaded.profile_key).write_text("{")
    with pytest.raises(ProfileError, match="Delete the file"):
        draft_table(loaded, tmp_path, (1,), 1)
    draft_table(loaded, tmp_path, (1,), 1, refresh=True)
    assert draft_table(loaded, tmp_path, (1,), 1).rows.tolist()[0] == 1


def test_a_target_that_told_its_times_is_not_measured(tmp_path: Path) -> None:
    told = msg.Latencies([1, 8], [128], [[0.5, 1.0]], [])
    target, link = loopback(latencies=told)
    table = target_table(target, tmp_path, (1, 100), 1, allowed=False)
    assert table.at(8, 128) == 1.0
    assert len(link.sent) == 1  # the hello
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_did_not_is_measured_and_kept_under_the_servers_name(tmp_path: Path) -> None:
    target, link = loopback(profile="a GPU")
    target_table(target, tmp_path, (1, 4), 1)
    assert read_table(tmp_path, "target", "loopback a GPU") is not None
    asked = len(link.sent)
    target_table(target, tmp_path, (1, 4), 1)
    assert len(link.sent) == asked
    target_table(target, tmp_path, (1, 4), 1, refresh=True)
    assert len(link.sent) > asked


# ------------------------------------------------------------------------------ on a real server


@pytest.mark.parametrize("lazy", [True, False])
def test_a_server_that_profiles_tells_its_times_and_keeps_them(
    lazy: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autodraft.profiling.measure.MOST_TIMES", 1)
    settings = {"dtype": "float32", "auto_target_profile": True, "profile_dir": tmp_path}
    server = LocalServer(folder, lazy_load=lazy, **settings)
    try:
        target = connected(server)
        welcome = target.welcome
        target.close()
    finally:
        server.stop()
    assert welcome.latencies is not None
    assert welcome.latencies.contexts == [128, 768]
    assert welcome.latencies.rows[0] == 1
    assert welcome.latencies.rows[-1] >= 151
    assert list(welcome.row_padding) == welcome.latencies.padding
    kept = read_table(tmp_path, "target", welcome.profile)
    assert kept is not None
    assert kept.table.seconds.tolist() == welcome.latencies.seconds


def test_a_server_that_was_not_told_to_profile_does_not(server: LocalServer) -> None:
    target = connected(server)
    assert target.welcome.latencies is None
    assert "quantisation none" in target.welcome.profile
    target.close()


def test_a_servers_profile_is_read_the_next_time(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autodraft.profiling.measure.MOST_TIMES", 1)
    config = ServerConfig(profile_dir=tmp_path)
    first = served_table(loaded, config)
    monkeypatch.setattr(profiler, "OwnTarget", lambda *_: pytest.fail("measured again"))
    assert served_table(loaded, config).seconds.tolist() == first.seconds.tolist()


def test_a_damaged_profile_on_the_server_is_told_to_the_client(
    folder: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    settings = {"dtype": "float32", "auto_target_profile": True, "profile_dir": tmp_path}
    profile_path(tmp_path, "target", loaded.profile_key).write_text("{")
    server = LocalServer(folder, lazy_load=True, **settings)
    try:
        with pytest.raises(RemoteError, match="Delete the file") as error:
            connected(server)
    finally:
        server.stop()
    assert error.value.code == "MODEL_FAILED"


def test_a_real_server_is_measured_over_the_link(server: LocalServer) -> None:
    target = connected(server)
    table = measure_target(target, (1, 4, 100), calls=2)
    padded = bool(target.welcome.row_padding)
    assert table.rows.tolist() == ([1, 8] if padded else [1, 2, 5])  # it takes at most 64 nodes
    assert (table.seconds < 1.0).all()
    target.close()


def test_a_ping_carries_bytes_both_ways(server: LocalServer) -> None:
    target = connected(server)
    before = target.traffic
    target.ping(1000, 300)
    after = target.traffic
    assert 1000 < after.uplink_bytes - before.uplink_bytes < 1020
    assert 300 < after.downlink_bytes - before.downlink_bytes < 320
    target.close()


@pytest.mark.parametrize(("up", "down"), [(262_145, 0), (0, 262_145), (0, -1)])
def test_a_ping_with_too_many_bytes_is_refused(up: int, down: int, server: LocalServer) -> None:
    target = connected(server)
    with pytest.raises(RemoteError, match="0 to 262144") as error:
        target.ping(up, down)
    assert error.value.code == "LIMIT"
    target.close()


def test_a_loopback_has_no_bandwidth_to_notice(server: LocalServer) -> None:
    target = connected(server)
    found = measure_link(target)
    assert found.rtt_s < 0.05
    assert found.uplink_bytes_per_s == found.downlink_bytes_per_s == float("inf")
    target.close()


def test_a_shaped_link_is_measured_as_it_is_shaped(server: LocalServer) -> None:
    target = connected(
        server, rtt_s=0.04, uplink_bytes_per_s=TEN_MBPS, downlink_bytes_per_s=TEN_MBPS
    )
    found = measure_link(target)
    target.close()
    assert 0.04 <= found.rtt_s < 0.06
    assert found.uplink_bytes_per_s == pytest.approx(TEN_MBPS, rel=0.1)
    assert found.downlink_bytes_per_s == pytest.approx(TEN_MBPS, rel=0.1)
