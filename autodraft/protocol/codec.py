"""Messages to bytes and back; token ids and tree nodes in fixed-width binary fields.

A token id takes 3 bytes (little endian). A node takes its token and its parent: 1 byte, or 2 when
the tree has more than 255 nodes. Masks and positions are never sent, both sides derive them.
Decoding is strict: a message of another type, with missing, further or mistyped fields, raises.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from autodraft.errors import ProtocolError
from autodraft.protocol.messages import ClientMessage, ServerMessage

MAX_TOKEN_ID: Final = 2**24 - 1
NARROW_NODES: Final = 255
"""Most nodes of a tree whose parents fit one byte."""
MAX_NODES: Final = 2**16 - 1
DEFAULT_MAX_FRAME_BYTES: Final = 2**20

_TOKEN_BYTES: Final = 3
_FLOAT_BYTES: Final = 4
_NARROW_NODE: Final = _TOKEN_BYTES + 1
_WIDE_NODE: Final = _TOKEN_BYTES + 2

IntArray = npt.NDArray[np.int64]

_encoder = msgspec.msgpack.Encoder()
_client_decoder = msgspec.msgpack.Decoder(ClientMessage)
_server_decoder = msgspec.msgpack.Decoder(ServerMessage)


def encode(message: ClientMessage | ServerMessage) -> bytes:
    """Return the message as one MessagePack frame."""
    return _encoder.encode(message)


def decode_client(frame: bytes) -> ClientMessage:
    """Decode a frame that a client sent.

    Raises:
        ProtocolError: If it is no client message.
    """
    try:
        return _client_decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"Malformed message from the client: {error}") from error


def decode_server(frame: bytes) -> ServerMessage:
    """Decode a frame that a server sent.

    Raises:
        ProtocolError: If it is no server message.
    """
    try:
        return _server_decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(
            f"Malformed message from the target server: {error}. Is something else listening on "
            "that port, or an incompatible AutoDraft version?"
        ) from error


def _bytes_of(values: IntArray, width: int) -> npt.NDArray[np.uint8]:
    """Return the low ``width`` bytes of each value, [N, width]."""
    return values.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width]


def _values_of(columns: npt.NDArray[np.uint8]) -> IntArray:
    """Return the values whose little-endian bytes are the columns, [N]."""
    padded = np.zeros((len(columns), 4), dtype=np.uint8)
    padded[:, : columns.shape[1]] = columns
    return padded.view("<u4").ravel().astype(np.int64)


def _records_of(packed: bytes, width: int, what: str) -> npt.NDArray[np.uint8]:
    if len(packed) % width:
        raise ProtocolError(f"{what}: {len(packed)} bytes are not a multiple of {width}.")
    return np.frombuffer(packed, dtype=np.uint8).reshape(-1, width)


def pack_tokens(tokens: Sequence[int] | IntArray) -> bytes:
    """Pack token ids, 3 bytes each.

    Raises:
        ProtocolError: If an id does not fit (0 … 16,777,215).
    """
    ids = np.asarray(tokens, dtype=np.int64)
    _require_range(ids, MAX_TOKEN_ID, "token id")
    return _bytes_of(ids, _TOKEN_BYTES).tobytes()


def unpack_tokens(packed: bytes) -> IntArray:
    """Unpack token ids, [N].

    Raises:
        ProtocolError: If the length is not a multiple of 3.
    """
    return _values_of(_records_of(packed, _TOKEN_BYTES, "token ids"))


def pack_floats(values: Sequence[float]) -> bytes:
    """Pack numbers as float32, 4 bytes each."""
    return np.asarray(values, dtype="<f4").tobytes()


def unpack_floats(packed: bytes) -> list[float]:
    """Unpack numbers.

    Raises:
        ProtocolError: If the length is not a multiple of 4.
    """
    if len(packed) % _FLOAT_BYTES:
        raise ProtocolError(f"numbers: {len(packed)} bytes are not a multiple of {_FLOAT_BYTES}.")
    values: list[float] = np.frombuffer(packed, dtype="<f4").tolist()
    return values


def pack_nodes(tokens: IntArray, parents: IntArray) -> bytes:
    """Pack the nodes of a tree, root excluded.

    Args:
        tokens: Token of each node, [N].
        parents: Parent of each node in the numbering with the root as 0, [N].

    Raises:
        ProtocolError: If an id or the number of nodes does not fit.
    """
    _require_range(tokens, MAX_TOKEN_ID, "token id")
    if len(tokens) > MAX_NODES:
        raise ProtocolError(f"A tree of {len(tokens)} nodes; at most {MAX_NODES} can be sent.")
    parent_bytes = 1 if len(tokens) <= NARROW_NODES else 2
    columns = (_bytes_of(tokens, _TOKEN_BYTES), _bytes_of(parents, parent_bytes))
    return np.concatenate(columns, axis=1).tobytes()


def unpack_nodes(packed: bytes) -> tuple[IntArray, IntArray]:
    """Unpack a tree's nodes: tokens [N] and parents [N].

    The width of a parent follows from the length alone: 4-byte nodes end at 1,020 bytes, 5-byte
    nodes begin at 1,280.

    Raises:
        ProtocolError: If the length fits neither form.
    """
    narrow = len(packed) <= NARROW_NODES * _NARROW_NODE
    records = _records_of(packed, _NARROW_NODE if narrow else _WIDE_NODE, "tree nodes")
    if not narrow and len(records) <= NARROW_NODES:
        raise ProtocolError(
            f"tree nodes: {len(packed)} bytes lie between {NARROW_NODES} nodes of {_NARROW_NODE} "
            f"bytes and {NARROW_NODES + 1} of {_WIDE_NODE}."
        )
    return _values_of(records[:, :_TOKEN_BYTES]), _values_of(records[:, _TOKEN_BYTES:])


def pack_path(path: IntArray, num_nodes: int) -> bytes:
    """Pack accepted node indices, 1 byte each in a tree of up to 255 nodes, else 2."""
    return _bytes_of(path, 1 if num_nodes <= NARROW_NODES else 2).tobytes()


def unpack_path(packed: bytes, num_nodes: int) -> IntArray:
    """Unpack accepted node indices, [accepted].

    Raises:
        ProtocolError: If an index is not one of the tree's.
    """
    width = 1 if num_nodes <= NARROW_NODES else 2
    path = _values_of(_records_of(packed, width, "accepted path"))
    if len(path) and (path.max() > num_nodes or path.min() < 1):
        raise ProtocolError(f"The accepted path names a node outside the {num_nodes} sent.")
    return path


def _require_range(values: IntArray, maximum: int, what: str) -> None:
    if len(values) and (values.min() < 0 or values.max() > maximum):
        raise ProtocolError(f"A {what} lies outside 0 … {maximum} and cannot be sent.")
