"""Messages and their binary fields: round trips, sizes, and every way to be malformed."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.errors import ProtocolError
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import (
    MAX_NODES,
    MAX_TOKEN_ID,
    NARROW_NODES,
    decode_client,
    decode_server,
    encode,
    pack_floats,
    pack_nodes,
    pack_path,
    pack_tokens,
    unpack_floats,
    unpack_nodes,
    unpack_path,
    unpack_tokens,
)
from autodraft.tree.draft_tree import IntArray

TOKEN_IDS = st.integers(0, MAX_TOKEN_ID)
BIG_IDS = np.array([0, 1, 255, 256, 65_535, 65_536, 151_935, MAX_TOKEN_ID])

SAMPLING = msg.Sampling(
    0.7, 40, 0.9, 0.05, 2**64 - 1, 3, 1.3, -0.5, 0.25, {151_645: -100.0}, [[5], [1, 2]], 12
)
SCORES = msg.Scores(b"\0\0\0\x3f", b"\0\0\x80\xbf", b"\x01\x02\x03", b"\0\0\x80\xbf")

CLIENT_MESSAGES: list[msg.ClientMessage] = [
    msg.Hello(1, "autodraft"),
    msg.Hello(1, "autodraft", "a/model", "4bit", "float32"),
    msg.Hello(1, "autodraft", None, None, None, msg.DraftWish("a/draft", "none", "auto")),
    msg.Open(256, 150, "opt_tree"),
    msg.Open(256, 0, "server_only", ["\ndef", "\nclass"]),
    msg.Open(256, 150, "chain", None, SAMPLING, True, 20, True),
    msg.Open(256, 150, "chain", None, msg.Sampling(), False, 0),
    msg.Prefill(b"\x01\x02\x03"),
    msg.Verify(7, b"\x01\x02\x03\x00"),
    msg.Generate(),
    msg.Speculate("opt_tree", 16, 15, 150, False),
    msg.Stop(),
    msg.Close(),
    msg.Ping(),
    msg.Ping(b"\x00\xff", 65_536),
]
SERVER_MESSAGES: list[msg.ServerMessage] = [
    msg.Welcome(
        version=1,
        software="0.1.0",
        server_name="autodraft",
        model="a/model",
        revision="abc",
        quantization="none",
        dtype="float32",
        device="cpu",
        tokenizer_hash="0" * 64,
        added_tokens={151_643: "<|endoftext|>", 151_645: "<|im_end|>"},
        eos_ids=[151_645],
        vocab_size=152_064,
        max_context=32_768,
        max_nodes=1024,
        max_depth=128,
        max_frame_bytes=2**20,
        energy_method="nvml",
        draft=msg.DraftInfo("a/draft", "abc", "none", "bfloat16", "cpu", "a CPU, 2 threads"),
        profile="a GPU, 2 threads",
        latencies=msg.Latencies([1, 8], [128, 768], [[0.5, 0.25], [1.0, 2.0]], [1, 8]),
        row_padding=(1, 8),
    ),
    msg.Opened("abcdef012345"),
    msg.Opened("abcdef012345", True),
    msg.Prefilled(151_645, 0, 123_456),
    msg.Prefilled(151_645, 0, 123_456, 1_234, SCORES),
    msg.Verified(3, b"\x01\x02", 151_645, 12, 34_567),
    msg.Verified(3, b"\x01\x02", 151_645, 12, 34_567, SCORES),
    msg.Tokens(b"\x01\x02\x03", msg.Finish.STOP, True, 0, 9_999),
    msg.Tokens(b"\x01\x02\x03", msg.Finish.STOP, True, 0, 9_999, SCORES),
    msg.Tokens(b"", msg.Finish.RUNNING, True, 0, 0),
    msg.Block(b"\x01\x02\x03", msg.Finish.RUNNING, False, 4, 3, 20, 12, 0, 10, 20_000, 30_000),
    msg.Block(b"\x01\x02\x03", msg.Finish.STOP, True, 4, 3, 20, 12, 0, 10, 20, 30, SCORES),
    msg.Block(b"", msg.Finish.STOP, True),
    msg.Closed(17, 1_000_000, 2_000_000, 0),
    msg.Closed(17, 1_000_000, 2_000_000, 500_000, 12_345, 6_789),
    msg.Closed(17, 1_000_000, 2_000_000, 500_000, redecided=3),
    msg.Pong(),
    msg.Pong(b"\x00\xff"),
    msg.Error(msg.ErrorCode.CONTEXT_LENGTH, "A prompt of 9 tokens; this server takes 1 to 8."),
]
FRAMES = [encode(message) for message in [*CLIENT_MESSAGES, *SERVER_MESSAGES]]


def name_of(message: msg.ClientMessage | msg.ServerMessage) -> str:
    return type(message).__name__


def fields_of(message: msg.ClientMessage | msg.ServerMessage) -> list[Any]:
    """The array that a message is on the wire."""
    fields: list[Any] = msgspec.msgpack.decode(encode(message))
    return fields


def some_tree(num_nodes: int) -> tuple[IntArray, IntArray]:
    rng = np.random.default_rng(num_nodes)
    tokens = rng.integers(0, MAX_TOKEN_ID, num_nodes, endpoint=True)
    parents = np.array([rng.integers(0, node + 1) for node in range(num_nodes)], dtype=np.int64)
    return tokens, parents


@pytest.mark.parametrize("message", CLIENT_MESSAGES, ids=name_of)
def test_every_client_message_survives_the_round_trip(message: msg.ClientMessage) -> None:
    decoded = decode_client(encode(message))
    assert decoded == message
    assert type(decoded) is type(message)


@pytest.mark.parametrize("message", SERVER_MESSAGES, ids=name_of)
def test_every_server_message_survives_the_round_trip(message: msg.ServerMessage) -> None:
    decoded = decode_server(encode(message))
    assert decoded == message
    assert type(decoded) is type(message)


def test_every_message_type_is_tried_here() -> None:
    known = {
        item
        for item in vars(msg).values()
        if isinstance(item, type)
        and issubclass(item, msgspec.Struct)
        and item.__struct_config__.tag is not None  # else a part of a message
    }
    assert known == {type(message) for message in [*CLIENT_MESSAGES, *SERVER_MESSAGES]}


@pytest.mark.parametrize("message", CLIENT_MESSAGES, ids=name_of)
def test_a_client_message_is_no_server_message(message: msg.ClientMessage) -> None:
    with pytest.raises(ProtocolError, match="Is something else listening on that port"):
        decode_server(encode(message))


@pytest.mark.parametrize("message", SERVER_MESSAGES, ids=name_of)
def test_a_server_message_is_no_client_message(message: msg.ServerMessage) -> None:
    with pytest.raises(ProtocolError, match="Malformed message from the client"):
        decode_client(encode(message))


@pytest.mark.parametrize(
    "content",
    [
        [99, 1, b""],
        [0],
        [-4, 1, b""],
        ["4", 1, b""],
        [],
        None,
        4,
        "text",
        {"round": 1, "nodes": b""},
        [4, 1],
        [4, 1, b"", 5],
        [4, "1", b""],
        [4, 1.0, b""],
        [4, True, b""],
        [4, None, b""],
        [4, 1, "nodes"],
        [4, 1, [1, 2]],
        [8, 1],
        [1, 1, None, None, None, None],
        [2, 5, 8, "chain", None, ["warm"]],
        [2, 5, 8, "chain", None, [0.5, 1.5]],
        [2, 5, 8, "chain", None, [0.5, 0, 1.0, 0.0, 0.5]],
        [2, 5, 8, "chain", None, None, 1],
        [2, 5, 8, "chain", None, None, None, 0.5],
        [2, 5, 8, "chain", None, None, None, None, 1],
    ],
    ids=repr,
)
def test_what_is_no_message_is_refused(content: Any) -> None:
    with pytest.raises(ProtocolError):
        decode_client(msgspec.msgpack.encode(content))


@pytest.mark.parametrize("message", CLIENT_MESSAGES, ids=name_of)
def test_a_further_field_is_refused(message: msg.ClientMessage) -> None:
    fields = msgspec.structs.fields(message)
    complete = [*fields_of(message), *[None] * (len(fields) + 1 - len(fields_of(message)))]
    with pytest.raises(ProtocolError, match="at most length"):
        decode_client(msgspec.msgpack.encode([*complete, 1]))


def test_an_unknown_error_code_or_finish_is_refused() -> None:
    for content in ([27, 99, "?"], [24, b"", 9, True, 0, 0]):
        with pytest.raises(ProtocolError, match="Invalid enum value"):
            decode_server(msgspec.msgpack.encode(content))


@pytest.mark.parametrize("frame", FRAMES, ids=bytes.hex)
def test_a_truncated_frame_is_refused(frame: bytes) -> None:
    for end in range(len(frame)):
        for decode in (decode_client, decode_server):
            with pytest.raises(ProtocolError):
                decode(frame[:end])


@pytest.mark.parametrize("frame", FRAMES, ids=bytes.hex)
def test_bytes_behind_a_message_are_refused(frame: bytes) -> None:
    for decode in (decode_client, decode_server):
        with pytest.raises(ProtocolError):
            decode(frame + b"\x00")


@pytest.mark.parametrize(
    "frame",
    [
        b"\x95\x01\x01\xa2\xff\xfe\xc0\xc0\xc0",
        b"\x91" * 100_000,
        b"\x93\x04\x01" + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff\x04",
        b"\x93\x04\x01\xc6\xff\xff\xff\xff",
        b"\xc7\x03\x01abc",
        b"\xc1",
    ],
    ids=[
        "no UTF-8",
        "a deep nest",
        "a deep nest in a field",
        "four billion fields",
        "four billion bytes",
        "an extension",
        "a byte that means nothing",
    ],
)
def test_hostile_bytes_are_refused(frame: bytes) -> None:
    for decode in (decode_client, decode_server):
        with pytest.raises(ProtocolError):
            decode(frame)


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_else(frame: bytes) -> None:
    for decode in (decode_client, decode_server):
        try:
            message = decode(frame)
        except ProtocolError:
            continue
        assert isinstance(message, msgspec.Struct)


@given(st.sampled_from(FRAMES), st.data())
def test_a_frame_with_one_changed_byte_never_raises_anything_else(
    frame: bytes, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(frame) - 1))
    changed = frame[:place] + bytes([data.draw(st.integers(0, 255))]) + frame[place + 1 :]
    for decode in (decode_client, decode_server):
        try:
            decode(changed)
        except ProtocolError:
            continue


def test_a_token_takes_three_bytes_little_endian() -> None:
    assert pack_tokens([1, 0x020304]) == b"\x01\x00\x00\x04\x03\x02"


def test_token_ids_of_every_size_survive_the_round_trip() -> None:
    assert unpack_tokens(pack_tokens(BIG_IDS)).tolist() == BIG_IDS.tolist()


@given(st.lists(TOKEN_IDS, max_size=50))
def test_token_ids_survive_the_round_trip(ids: list[int]) -> None:
    packed = pack_tokens(ids)
    assert len(packed) == 3 * len(ids)
    assert unpack_tokens(packed).tolist() == ids


@pytest.mark.parametrize("token", [-1, MAX_TOKEN_ID + 1, 2**32 + 5])
def test_a_token_id_that_does_not_fit_is_refused(token: int) -> None:
    with pytest.raises(ProtocolError, match="token id lies outside 0 … 16777215"):
        pack_tokens([5, token])
    with pytest.raises(ProtocolError, match="token id lies outside"):
        pack_nodes(np.array([5, token]), np.array([0, 0]))


@pytest.mark.parametrize("length", [1, 2, 4, 100])
def test_token_bytes_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"{length} bytes are not a multiple of 3"):
        unpack_tokens(bytes(length))


def test_a_number_takes_four_bytes_as_little_endian_float32() -> None:
    assert pack_floats([0.5, -1.0]) == b"\0\0\0\x3f\0\0\x80\xbf"
    assert unpack_floats(b"\0\0\0\x3f\0\0\x80\xbf") == [0.5, -1.0]


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=50))
def test_numbers_of_single_precision_survive_the_round_trip(values: list[float]) -> None:
    assert unpack_floats(pack_floats(values)) == values


@pytest.mark.parametrize("length", [1, 2, 3, 5, 99])
def test_number_bytes_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"{length} bytes are not a multiple of 4"):
        unpack_floats(bytes(length))


@pytest.mark.parametrize("num_nodes", [0, 1, 2, 64, 255, 256, 257, 1000])
def test_trees_of_every_size_survive_the_round_trip(num_nodes: int) -> None:
    tokens, parents = some_tree(num_nodes)
    packed = pack_nodes(tokens, parents)
    assert len(packed) == num_nodes * (4 if num_nodes <= NARROW_NODES else 5)
    unpacked_tokens, unpacked_parents = unpack_nodes(packed)
    assert unpacked_tokens.tolist() == tokens.tolist()
    assert unpacked_parents.tolist() == parents.tolist()


def test_a_node_is_its_token_and_its_parent() -> None:
    assert pack_nodes(np.array([0x010203, 5]), np.array([0, 1])) == b"\x03\x02\x01\x00\x05\0\0\x01"
    wide = pack_nodes(*some_tree(300))
    tokens, parents = some_tree(300)
    last = int(tokens[299]).to_bytes(3, "little") + int(parents[299]).to_bytes(2, "little")
    assert wide[-5:] == last


@given(st.lists(TOKEN_IDS, max_size=600), st.data())
def test_nodes_survive_the_round_trip(ids: list[int], data: st.DataObject) -> None:
    tokens = np.array(ids, dtype=np.int64)
    last = data.draw(st.integers(0, max(len(ids) - 1, 0)))
    parents = np.minimum(np.arange(len(ids)), last)
    unpacked = unpack_nodes(pack_nodes(tokens, parents))
    assert unpacked[0].tolist() == ids
    assert unpacked[1].tolist() == parents.tolist()


@pytest.mark.parametrize("length", [1, 2, 3, 5, 1019, 1021, 1281, 4999])
def test_node_bytes_of_neither_width_are_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"tree nodes: {length} bytes"):
        unpack_nodes(bytes(length))


@pytest.mark.parametrize("length", [1025, 1100, 1275])
def test_wide_nodes_of_a_tree_that_is_small_enough_for_narrow_ones_are_refused(length: int) -> None:
    with pytest.raises(ProtocolError):
        unpack_nodes(bytes(length))


def test_more_nodes_than_two_bytes_can_number_are_refused() -> None:
    nodes = np.zeros(MAX_NODES + 1, dtype=np.int64)
    with pytest.raises(ProtocolError, match="at most 65535 can be sent"):
        pack_nodes(nodes, nodes)


@pytest.mark.parametrize("num_nodes", [1, 255, 256, 1000])
def test_an_accepted_path_survives_the_round_trip(num_nodes: int) -> None:
    for path in ([], [1], [num_nodes], sorted({1, num_nodes // 2 + 1, num_nodes})):
        packed = pack_path(np.array(path, dtype=np.int64), num_nodes)
        assert len(packed) == len(path) * (1 if num_nodes <= NARROW_NODES else 2)
        assert unpack_path(packed, num_nodes).tolist() == path


@pytest.mark.parametrize("node", [0, 6, 255])
def test_a_path_that_leaves_the_tree_is_refused(node: int) -> None:
    with pytest.raises(ProtocolError, match="a node outside the 5 sent"):
        unpack_path(bytes([1, node]), 5)


def test_half_an_index_of_a_wide_path_is_refused() -> None:
    with pytest.raises(ProtocolError, match="3 bytes are not a multiple of 2"):
        unpack_path(bytes(3), 256)


@pytest.mark.parametrize("num_nodes", [1, 64, 255])
def test_a_round_goes_up_in_four_bytes_a_node_and_at_most_32(num_nodes: int) -> None:
    tokens = np.arange(65_536, 65_536 + num_nodes)
    frame = encode(msg.Verify(100_000, pack_nodes(tokens, np.arange(num_nodes))))
    assert len(frame) <= 4 * num_nodes + 32


@pytest.mark.parametrize("num_nodes", [64, 1000])
def test_a_verdict_of_depth_eight_comes_down_in_at_most_64_bytes(num_nodes: int) -> None:
    path = pack_path(np.arange(num_nodes - 7, num_nodes + 1), num_nodes)
    frame = encode(msg.Verified(100_000, path, 151_645, queue_us=30_000_000, forward_us=9_999_999))
    assert len(unpack_path(path, num_nodes)) == 8
    assert len(frame) <= 64
