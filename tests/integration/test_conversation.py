"""What a target server does with clients that do not follow the protocol.

A server in this process on a real socket, spoken to frame by frame: each fault ends its own
connection with a typed error, and the next client is served as if nothing had happened.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from autodraft.protocol import messages as msg
from autodraft.protocol.codec import decode_server, encode, pack_nodes, pack_tokens
from tests.fakes import save_tiny_model
from tests.local_server import LocalServer

HELLO = msg.Hello(msg.PROTOCOL_VERSION, "autodraft")
OPEN = msg.Open(50, 8, "chain")
PREFILL = msg.Prefill(pack_tokens([5, 6, 7]))
RUNNING = [HELLO, OPEN, PREFILL]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LocalServer]:
    running = LocalServer(folder, max_nodes=64, max_depth=4)
    yield running
    running.stop()


@contextmanager
def client(server: LocalServer) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{server.port}/", compression=None) as connection:
        yield connection


def ask(connection: ClientConnection, message: msg.ClientMessage) -> msg.ServerMessage:
    connection.send(encode(message))
    return receive(connection)


def receive(connection: ClientConnection) -> msg.ServerMessage:
    frame = connection.recv(timeout=30)
    assert isinstance(frame, bytes)
    return decode_server(frame)


def assert_served(server: LocalServer) -> None:
    with client(server) as connection:
        replies = [type(ask(connection, message)) for message in [*RUNNING, msg.Close()]]
    assert replies == [msg.Welcome, msg.Opened, msg.Prefilled, msg.Closed]


def nodes(*parents: int, tokens: list[int] | None = None) -> bytes:
    chosen = np.array(tokens or range(1, len(parents) + 1))
    return pack_nodes(chosen, np.array(parents, dtype=np.int64))


def open_with(top_logprobs: int | None = None, **sampling: Any) -> msg.Open:
    chosen = msg.Sampling(**sampling)
    return msg.Open(5, 8, "chain", sampling=chosen, top_logprobs=top_logprobs)


def speculate(
    method: str = "lookup", width: int = 0, max_depth: int = 4, node_budget: int = 8
) -> msg.Speculate:
    return msg.Speculate(method, width, max_depth, node_budget, False)


@pytest.mark.parametrize(
    ("before", "message", "code", "words"),
    [
        ([], OPEN, "OUT_OF_ORDER", "Say Hello"),
        ([], PREFILL, "OUT_OF_ORDER", "Say Hello"),
        ([HELLO], HELLO, "OUT_OF_ORDER", "said before"),
        ([HELLO], PREFILL, "OUT_OF_ORDER", "No session is open"),
        ([HELLO], msg.Close(), "OUT_OF_ORDER", "No session is open"),
        ([HELLO, OPEN], OPEN, "OUT_OF_ORDER", "open already"),
        ([HELLO, OPEN], msg.Verify(1, nodes(0)), "OUT_OF_ORDER", "no prompt"),
        ([HELLO, OPEN], msg.Generate(), "OUT_OF_ORDER", "no prompt"),
        ([HELLO, OPEN], speculate(), "OUT_OF_ORDER", "no prompt"),
        ([*RUNNING, msg.Verify(1, nodes(0))], speculate(), "OUT_OF_ORDER", "behind the prompt"),
        (RUNNING, speculate("chain"), "MODEL_REFUSED", "wanted no draft model"),
        (RUNNING, speculate("chian"), "BAD_MESSAGE", "Did you mean chain"),
        (RUNNING, speculate("autodraft"), "BAD_MESSAGE", "autodraft needs cs"),
        (RUNNING, speculate(max_depth=5), "LIMIT", "depth 5"),
        (RUNNING, speculate(node_budget=9), "LIMIT", "9 nodes"),
        (RUNNING, speculate(width=-1), "BAD_MESSAGE", "width"),
        ([HELLO], msg.Open(5, 8, "chain", [""]), "LIMIT", "1 to 256 characters"),
        ([HELLO], msg.Open(5, 8, "chain", ["x" * 257]), "LIMIT", "1 to 256 characters"),
        ([HELLO], msg.Open(5, 8, "chain", ["x"] * 17), "LIMIT", "at most 16"),
        ([HELLO], open_with(temperature=-1.0), "BAD_MESSAGE", "temperature=-1.0"),
        ([HELLO], open_with(temperature=float("nan")), "BAD_MESSAGE", "temperature=nan"),
        ([HELLO], open_with(top_k=-1), "BAD_MESSAGE", "top_k=-1"),
        ([HELLO], open_with(top_p=0.0), "BAD_MESSAGE", "top_p=0.0"),
        ([HELLO], open_with(min_p=1.5), "BAD_MESSAGE", "min_p=1.5"),
        ([HELLO], open_with(seed=-1), "BAD_MESSAGE", "seed=-1"),
        ([HELLO], open_with(choice=65_536), "BAD_MESSAGE", "choice=65536"),
        ([HELLO], open_with(repetition_penalty=0.0), "BAD_MESSAGE", "repetition_penalty=0.0"),
        ([HELLO], open_with(presence_penalty=101.0), "BAD_MESSAGE", "presence_penalty=101.0"),
        ([HELLO], open_with(frequency_penalty=-101.0), "BAD_MESSAGE", "frequency_penalty=-101.0"),
        ([HELLO], open_with(logit_bias={5: 101.0}), "BAD_MESSAGE", "logit_bias[5]=101.0"),
        ([HELLO], open_with(bad_words=[[]]), "BAD_MESSAGE", "bad_words has []"),
        ([HELLO], open_with(min_new_tokens=-1), "BAD_MESSAGE", "min_new_tokens=-1"),
        ([HELLO], open_with(top_logprobs=21), "BAD_MESSAGE", "top_logprobs=21"),
        (RUNNING, PREFILL, "OUT_OF_ORDER", "prompt already"),
        (RUNNING, msg.Verify(2, nodes(0)), "OUT_OF_ORDER", "round 1 was due"),
        ([], msg.Hello(99, "autodraft"), "VERSION", "version 99"),
        ([], msg.Hello(msg.PROTOCOL_VERSION, "other"), "SERVER_NAME", "'other'"),
        ([HELLO], msg.Open(0, 8, "chain"), "LIMIT", "at least 1"),
        ([HELLO], msg.Open(5, 65, "chain"), "LIMIT", "0 to 64"),
        ([HELLO, OPEN], msg.Prefill(b""), "CONTEXT_LENGTH", "0 tokens"),
        ([HELLO, OPEN], msg.Prefill(pack_tokens([5] * 4096)), "CONTEXT_LENGTH", "4096 tokens"),
        ([HELLO, OPEN], msg.Prefill(b"1234"), "BAD_MESSAGE", "multiple of 3"),
        ([HELLO, OPEN], msg.Prefill(pack_tokens([9999])), "BAD_MESSAGE", "9999"),
        (RUNNING, msg.Verify(1, nodes(*[0] * 9)), "LIMIT", "9 nodes"),
        (RUNNING, msg.Verify(1, nodes(0, 1, 2, 3, 4)), "BAD_MESSAGE", "depth 5"),
        (RUNNING, msg.Verify(1, nodes(1)), "BAD_MESSAGE", "after its parent"),
        (RUNNING, msg.Verify(1, nodes(0, 0, tokens=[3, 3])), "BAD_MESSAGE", "same token"),
        (RUNNING, msg.Verify(1, nodes(0, tokens=[9999])), "BAD_MESSAGE", "9999"),
        (RUNNING, msg.Verify(1, b"12345"), "BAD_MESSAGE", "multiple of 4"),
    ],
)
def test_a_wrong_message_ends_its_own_connection_with_a_typed_error(
    server: LocalServer,
    before: list[msg.ClientMessage],
    message: msg.ClientMessage,
    code: str,
    words: str,
) -> None:
    with client(server) as connection:
        for earlier in before:
            assert not isinstance(ask(connection, earlier), msg.Error)
        reply = ask(connection, message)
        assert isinstance(reply, msg.Error)
        assert reply.code.name == code
        assert words in reply.message
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=30)
    assert_served(server)


def test_a_setting_that_is_refused_leaves_other_sessions_alone(server: LocalServer) -> None:
    with client(server) as served:
        for message in RUNNING:
            ask(served, message)
        with client(server) as refused:
            ask(refused, HELLO)
            assert isinstance(ask(refused, open_with(top_p=2.0)), msg.Error)
        assert isinstance(ask(served, msg.Verify(1, nodes(0))), msg.Verified)
        assert isinstance(ask(served, msg.Close()), msg.Closed)


def test_settings_for_tokens_that_the_target_does_not_have_change_nothing(
    server: LocalServer,
) -> None:
    biased = open_with(logit_bias={9999: 5.0}, bad_words=[[9999], [7, 9999]])
    firsts = []
    for opened in (OPEN, biased):
        with client(server) as connection:
            replies = [ask(connection, message) for message in (HELLO, opened, PREFILL)]
            assert isinstance(replies[-1], msg.Prefilled)
            firsts.append(replies[-1].token)
    assert firsts[0] == firsts[1]


def test_scores_come_with_every_answer_where_they_are_asked_for(server: LocalServer) -> None:
    with client(server) as connection:
        ask(connection, HELLO)
        ask(connection, msg.Open(4, 8, "chain", top_logprobs=2))
        replies = [ask(connection, PREFILL), ask(connection, msg.Verify(1, nodes(0)))]
        replies.append(ask(connection, msg.Generate()))
        while not replies[-1].last:  # type: ignore[union-attr]
            replies.append(receive(connection))
        assert isinstance(ask(connection, msg.Close()), msg.Closed)
    scores = [reply.scores for reply in replies]  # type: ignore[union-attr]
    assert [len(score.gaps) // 4 for score in scores if score] == [1, 1, 1, 1]
    assert [len(score.top_ids) // 3 for score in scores if score] == [2, 2, 2, 2]


def test_an_answer_that_has_ended_takes_no_further_round(server: LocalServer) -> None:
    with client(server) as connection:
        ask(connection, HELLO)
        ask(connection, msg.Open(1, 8, "chain"))
        ask(connection, PREFILL)
        reply = ask(connection, msg.Verify(1, nodes(0)))
    assert isinstance(reply, msg.Error)
    assert "has ended" in reply.message


@pytest.mark.parametrize("request_", [msg.Generate(), speculate()], ids=["tokens", "rounds"])
def test_a_stream_behind_an_answer_that_has_ended_is_one_empty_piece(
    server: LocalServer, request_: msg.ClientMessage
) -> None:
    with client(server) as connection:
        ask(connection, HELLO)
        ask(connection, msg.Open(1, 8, "server_only"))
        ask(connection, PREFILL)
        piece = ask(connection, request_)
        bill = ask(connection, msg.Close())
    assert isinstance(piece, msg.Tokens | msg.Block)
    assert (piece.tokens, piece.finish, piece.last) == (b"", msg.Finish.LENGTH, True)
    assert isinstance(bill, msg.Closed)
    assert bill.forwards == 1


def test_stop_ends_rounds_in_place_between_two_of_them(server: LocalServer) -> None:
    with client(server) as connection:
        for message in (HELLO, msg.Open(1500, 8, "lookup@server"), PREFILL):
            ask(connection, message)
        connection.send(encode(speculate()))
        connection.send(encode(msg.Stop()))
        rounds, streamed = 0, 0
        while True:
            piece = receive(connection)
            assert isinstance(piece, msg.Block)
            rounds += bool(piece.tokens)
            streamed += len(piece.tokens) // 3
            if piece.last:
                break
        bill = ask(connection, msg.Close())
    assert streamed < 1499
    assert isinstance(bill, msg.Closed)
    assert bill.forwards == 1 + rounds
    assert bill.draft_us <= bill.busy_us <= bill.held_us


def test_stop_ends_a_stream_at_a_token_and_the_session_goes_on(server: LocalServer) -> None:
    with client(server) as connection:
        ask(connection, HELLO)
        ask(connection, msg.Open(1500, 8, "server_only"))
        ask(connection, PREFILL)
        connection.send(encode(msg.Generate()))
        connection.send(encode(msg.Stop()))
        streamed = 0
        while True:
            piece = receive(connection)
            assert isinstance(piece, msg.Tokens)
            streamed += len(piece.tokens) // 3
            if piece.last:
                break
        assert streamed < 1499
        assert piece.finish is msg.Finish.RUNNING
        assert isinstance(ask(connection, msg.Verify(1, nodes(0))), msg.Verified)
        bill = ask(connection, msg.Close())
    assert isinstance(bill, msg.Closed)
    assert bill.forwards == 1 + streamed + 1
    assert 0 < bill.busy_us <= bill.held_us


def test_a_round_while_the_server_decodes_is_out_of_order(server: LocalServer) -> None:
    with client(server) as connection:
        for message in (HELLO, msg.Open(1500, 8, "server_only"), PREFILL):
            ask(connection, message)
        connection.send(encode(msg.Generate()))
        connection.send(encode(msg.Verify(1, nodes(0))))
        while not isinstance(reply := receive(connection), msg.Error):
            assert isinstance(reply, msg.Tokens)
    assert reply.code is msg.ErrorCode.OUT_OF_ORDER
    assert_served(server)


def test_ping_is_answered_before_anything_else(server: LocalServer) -> None:
    with client(server) as connection:
        assert ask(connection, msg.Ping()) == msg.Pong()


def test_text_is_refused(server: LocalServer) -> None:
    with client(server) as connection:
        connection.send("hello")
        reply = receive(connection)
    assert isinstance(reply, msg.Error)
    assert "binary" in reply.message


def test_an_oversized_frame_ends_the_connection(server: LocalServer) -> None:
    with client(server) as connection:
        connection.send(b"\x00" * (2**20 + 1))
        with pytest.raises(ConnectionClosed) as caught:
            connection.recv(timeout=30)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009
    assert_served(server)


def test_mutated_frames_never_bring_the_server_down(server: LocalServer) -> None:
    generator = random.Random(5)
    originals = [encode(message) for message in [*RUNNING, msg.Verify(1, nodes(0, 1)), msg.Close()]]
    for _ in range(150):
        with client(server) as connection:
            for frame in originals:
                mutated = bytearray(frame)
                for _ in range(generator.randrange(3)):
                    mutated[generator.randrange(len(mutated))] = generator.randrange(256)
                try:
                    connection.send(bytes(mutated))
                    reply = receive(connection)
                except ConnectionClosed:
                    break
                if isinstance(reply, msg.Error):
                    assert reply.code is not msg.ErrorCode.INTERNAL, reply.message
                    break
    assert_served(server)


def test_a_lazy_server_switches_models_only_when_nobody_uses_the_present_one(
    folder: Path,
) -> None:
    lazy = LocalServer(folder, lazy_load=True)
    try:
        assert lazy.loads == []
        wanted = msg.Hello(msg.PROTOCOL_VERSION, "autodraft", dtype="bfloat16")
        present = msg.Hello(msg.PROTOCOL_VERSION, "autodraft", dtype="float32")
        with client(lazy) as first:
            welcome = ask(first, present)
            with client(lazy) as second:
                refusal = ask(second, wanted)
        assert isinstance(welcome, msg.Welcome)
        assert isinstance(refusal, msg.Error)
        assert refusal.code is msg.ErrorCode.BUSY
        assert "1 other client" in refusal.message
        switched = None
        for _ in range(100):  # the server notices the end of the first connection in its own time
            with client(lazy) as third:
                switched = ask(third, wanted)
            if isinstance(switched, msg.Welcome):
                break
        assert isinstance(switched, msg.Welcome)
        assert switched.dtype == "bfloat16"
        assert [source.dtype for source in lazy.loads] == ["float32", "bfloat16"]
    finally:
        lazy.stop()
