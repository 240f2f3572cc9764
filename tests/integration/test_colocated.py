"""Co-located methods: the server drafts, and the answer is the target's own all the same."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from autodraft import Autodraft
from autodraft.config import (
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    NetworkSetting,
    RuntimeConfig,
)
from autodraft.engine.energy import MachineMeter, machine_meter
from autodraft.errors import RemoteError
from autodraft.models.loader import LoadedModel
from autodraft.protocol import messages as msg
from autodraft.transport.client import Link
from tests.local_server import LocalServer

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = {"chain": (1, 4, 4), "fixed_tree": (3, 3, 9), "opt_tree": (4, 4, 12), "lookup": (0, 4, 8)}
PROMPT = "Say it again: one two three, one two three, one two"
TOKENS = 40


def spec(method: str, placement: str = "server") -> MethodSpec:
    width, depth, nodes = SHAPES.get(method, (0, 0, 0))
    return MethodSpec(
        method=method, placement=placement, width=width, max_depth=depth, node_budget=nodes
    )


SERVER_ONLY = spec("server_only", "user")


def engine_for(pair: tuple[Path, Path], server: LocalServer, methods: str) -> Autodraft:
    config = ExperimentConfig(
        runtime=RuntimeConfig(target_port=server.port),
        models=ModelsConfig(
            base_model_path=str(pair[0]), draft_model_path=str(pair[1]), dtype="float32"
        ),
        algorithms={"method_names": methods},
    )
    return Autodraft.from_config(config)


@pytest.fixture(scope="module")
def server(tiny_pair: tuple[Path, Path]) -> Iterator[LocalServer]:
    running = LocalServer(tiny_pair[0], draft_model_path=str(tiny_pair[1]), dtype="float32")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(tiny_pair: tuple[Path, Path], server: LocalServer) -> Iterator[Autodraft]:
    with engine_for(tiny_pair, server, "server_only,chain@server") as running:
        yield running


@pytest.mark.parametrize("method", SHAPES)
def test_the_answer_is_server_onlys(engine: Autodraft, method: str) -> None:
    plain = engine.run(PROMPT, method=SERVER_ONLY, max_new_tokens=TOKENS)
    drafted = engine.run(PROMPT, method=spec(method), max_new_tokens=TOKENS)
    assert drafted.token_ids == plain.token_ids
    assert (drafted.text, drafted.finish_reason) == (plain.text, plain.finish_reason)


@pytest.mark.parametrize("method", SHAPES)
def test_its_rounds_are_those_of_the_same_method_at_the_user(
    tiny_pair: tuple[Path, Path], server: LocalServer, method: str
) -> None:
    # An engine of its own for each side: what retrieval has learned would tell them apart.
    shapes = []
    for placement in ("user", "server"):
        with engine_for(tiny_pair, server, "chain,chain@server") as fresh:
            result = fresh.run(PROMPT, method=spec(method, placement), max_new_tokens=TOKENS)
        shapes.append(
            [
                (one.round, one.context_tokens, one.width, one.depth, one.drafted_nodes)
                + (one.num_nodes, one.accepted_length, one.emitted_tokens)
                for one in result.rounds
            ]
        )
    assert shapes[0] == shapes[1]
    assert len(shapes[0]) > 3


def test_its_drafting_is_billed_and_the_users_device_takes_no_part(engine: Autodraft) -> None:
    record = engine.run(PROMPT, method=spec("fixed_tree"), max_new_tokens=TOKENS).request
    assert record.method == "fixed_tree@server"
    assert record.draft_s is None
    assert record.draft_j == record.draft_net_j == 0.0
    assert record.server_draft_s is not None
    assert 0 < record.server_draft_s < record.target_busy_s <= record.target_held_s
    assert record.target_forwards == 1 + record.rounds
    assert record.round_tokens == TOKENS - 1
    assert record.uplink_bytes < 300  # the prompt and three short messages: no tree goes up


def test_drafting_at_the_user_is_not_on_the_servers_bill(
    tiny_pair: tuple[Path, Path], server: LocalServer
) -> None:
    with engine_for(tiny_pair, server, "chain") as engine:
        record = engine.run(PROMPT, method=spec("chain", "user"), max_new_tokens=8).request
        assert engine.describe()["target"]["draft"] is None
    assert record.server_draft_s is None
    assert record.draft_s is not None


def test_the_handshake_names_the_draft_its_quantisation_and_its_profile(
    engine: Autodraft, tiny_pair: tuple[Path, Path]
) -> None:
    draft = engine.describe()["target"]["draft"]
    assert (draft["model"], draft["quantization"], draft["dtype"]) == (
        str(tiny_pair[1]), "none", "float32",
    )  # fmt: skip
    for word in ("threads", str(tiny_pair[1]), "float32", "quantisation none"):
        assert word in draft["profile"]


def test_a_client_without_local_drafting_loads_no_draft_model(engine: Autodraft) -> None:
    engine.run(PROMPT, method=spec("chain"), max_new_tokens=4)
    assert engine.describe()["draft"] is None


def test_a_method_on_the_server_that_the_configuration_did_not_name_is_asked_for_anew(
    tiny_pair: tuple[Path, Path], server: LocalServer
) -> None:
    with engine_for(tiny_pair, server, "chain") as engine:
        engine.run(PROMPT, method=spec("chain", "user"), max_new_tokens=4)
        record = engine.run(PROMPT, method=spec("chain"), max_new_tokens=4).request
    assert record.server_draft_s is not None


def test_an_eager_server_without_a_draft_refuses_and_names_both(
    tiny_pair: tuple[Path, Path],
) -> None:
    alone = LocalServer(tiny_pair[0], dtype="float32", lazy_load=False)
    try:
        engine = engine_for(tiny_pair, alone, "chain@server")
        with pytest.raises(RemoteError, match="runs no draft model.*--draft-model-path") as caught:
            engine.connect()
        assert caught.value.code == "MODEL_REFUSED"
        assert str(tiny_pair[1]) in str(caught.value)
        with engine_for(tiny_pair, alone, "lookup@server") as engine:
            assert engine.run(PROMPT, method=spec("lookup"), max_new_tokens=4).token_ids
    finally:
        alone.stop()


def test_a_lazy_server_does_not_load_a_clients_local_path(tiny_pair: tuple[Path, Path]) -> None:
    lazy = LocalServer(tiny_pair[0], dtype="float32")
    try:
        with pytest.raises(RemoteError, match=r"local path.*--draft-model-path") as caught:
            engine_for(tiny_pair, lazy, "chain@server").connect()
        assert caught.value.code == "MODEL_REFUSED"
    finally:
        lazy.stop()


def test_idle_power_is_measured_once_for_both_models(
    tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def counted(models: Sequence[LoadedModel]) -> MachineMeter:
        measured.append(len(models))
        return machine_meter(models)

    monkeypatch.setattr("autodraft.engine.host.machine_meter", counted)
    for lazy in (False, True):
        fresh = LocalServer(
            tiny_pair[0],
            draft_model_path=str(tiny_pair[1]),
            dtype="float32",
            draft_dtype="float32",
            lazy_load=lazy,
        )
        try:
            for _ in range(2):
                with engine_for(tiny_pair, fresh, "chain@server"):
                    pass
        finally:
            fresh.stop()
    assert measured == [2, 2]


def test_an_early_end_of_the_stream_leaves_the_link_ready(engine: Autodraft) -> None:
    for method in (SERVER_ONLY, spec("chain")):
        stream = engine.stream(PROMPT, method=method, max_new_tokens=1000)
        next(stream)
        stream.close()
    assert len(engine.run(PROMPT, method=spec("chain"), max_new_tokens=5).token_ids) == 5


@pytest.mark.parametrize("stop", [[""], ["x" * 257], ["x"] * 17, "\ndef"])
def test_stop_strings_that_no_server_takes_are_refused_before_they_are_sent(
    engine: Autodraft, stop: list[str] | str
) -> None:
    with pytest.raises(ValueError, match="stop is"):
        engine.run(PROMPT, method=SERVER_ONLY, stop=stop)


def test_an_error_reaches_the_client_through_messages_sent_ahead(server: LocalServer) -> None:
    def go_on(link: Link) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            link.send(msg.Ping())

    with Link("127.0.0.1", server.port, None) as link:
        link.send(msg.Open(5, 8, "early"))
        with pytest.raises(RemoteError, match="Say Hello first"):
            go_on(link)


def test_another_link_is_used_from_the_next_request_on(engine: Autodraft) -> None:
    engine.use_network(NetworkSetting(rtt_ms=60))
    slow_s = engine.measure_rtt()
    engine.use_network(NetworkSetting())
    assert slow_s > 0.06 > engine.measure_rtt() + 0.03
