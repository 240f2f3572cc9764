"""Text in pieces: never half a character, and joined the whole text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.decoding.text import TextStream

SPECIAL = 90


def decode_bytes(ids: Sequence[int]) -> str:
    """One token for each byte."""
    return bytes(ids).decode("utf-8", errors="replace")


def decode_words(ids: Sequence[int]) -> str:
    """Tokens of a vocabulary that puts a space before every word but the first (SentencePiece).

    Ids from ``SPECIAL`` on are special tokens, which are left out.
    """
    return " ".join(f"w{index}" for index in ids if index < SPECIAL)


def blocks_of(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    blocks, start = [], 0
    for size in sizes:
        blocks.append(ids[start : start + size])
        start += size
    return [*blocks, ids[start:]]


SIZES = st.lists(st.integers(0, 5), max_size=30)


def test_certain_text_is_released_at_once() -> None:
    stream = TextStream(decode_bytes)
    assert stream.push(b"Hello") == "Hello"
    assert stream.push(b", you") == ", you"
    assert stream.flush() == ""


def test_half_a_character_is_held_back_until_it_is_whole() -> None:
    stream = TextStream(decode_bytes)
    smile = "🙂".encode()
    assert stream.push(b"a" + smile[:1]) == ""
    assert stream.push(smile[1:3]) == ""
    assert stream.push(smile[3:] + b"b") == "a🙂b"


def test_a_flush_releases_what_never_became_whole() -> None:
    stream = TextStream(decode_bytes)
    stream.push(b"ok")
    assert stream.push("é".encode()[:1]) == ""
    assert stream.flush() == "�"
    assert stream.flush() == ""


def test_an_empty_stream_flushes_nothing() -> None:
    assert TextStream(decode_bytes).flush() == ""


def test_a_space_that_depends_on_the_token_before_is_not_lost() -> None:
    stream = TextStream(decode_words)
    assert [stream.push([1]), stream.push([2, 3]), stream.push([4])] == ["w1", " w2 w3", " w4"]


@pytest.mark.parametrize("silent", [[], [SPECIAL]], ids=["empty block", "special token"])
def test_a_block_without_text_does_not_lose_the_space_of_the_next(silent: list[int]) -> None:
    stream = TextStream(decode_words)
    assert [stream.push([1]), stream.push(silent), stream.push([2])] == ["w1", "", " w2"]


@given(st.text(max_size=40), SIZES)
def test_pieces_joined_are_the_text_and_none_holds_half_a_character(
    text: str, sizes: list[int]
) -> None:
    stream = TextStream(decode_bytes)
    pieces = [stream.push(block) for block in blocks_of(text.encode(), sizes)]
    assert ("�" in text) or not any("�" in piece for piece in pieces)
    assert "".join(pieces) + stream.flush() == text


@given(st.binary(max_size=60), SIZES)
def test_pieces_joined_are_the_whole_text_of_any_bytes(ids: bytes, sizes: list[int]) -> None:
    stream = TextStream(decode_bytes)
    pieces = [stream.push(block) for block in blocks_of(ids, sizes)]
    assert "".join(pieces) + stream.flush() == decode_bytes(ids)


@given(st.lists(st.integers(0, 99), max_size=40), SIZES)
def test_pieces_joined_are_the_whole_text_of_words(ids: list[int], sizes: list[int]) -> None:
    stream = TextStream(decode_words)
    pieces = [stream.push(block) for block in blocks_of(ids, sizes)]
    assert "".join(pieces) + stream.flush() == decode_words(ids)
