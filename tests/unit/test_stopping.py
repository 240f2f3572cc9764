"""Where an answer ends: EOS, stop strings and the token limit anywhere in a block."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autodraft.decoding.stopping import Ending, StopRules, StopText, answer_limit

EOS = 2
RULES = StopRules(eos_ids=frozenset({EOS, 3}), max_new_tokens=10)


@pytest.mark.parametrize(
    ("emitted", "block", "kept", "finish"),
    [
        (0, [5, 6, 7], [5, 6, 7], None),
        (0, [], [], None),
        (4, [EOS, 6, 7], [EOS], "stop"),
        (4, [5, EOS, 7], [5, EOS], "stop"),
        (4, [5, 6, EOS], [5, 6, EOS], "stop"),
        (4, [5, 3, EOS], [5, 3], "stop"),
        (8, [5, 6, 7], [5, 6], "length"),
        (7, [5, 6, 7], [5, 6, 7], "length"),
        (6, [5, 6, 7], [5, 6, 7], None),
        (8, [5, EOS, 7], [5, EOS], "stop"),
        (8, [5, 6, EOS], [5, 6], "length"),
        (7, [5, 6, EOS], [5, 6, EOS], "stop"),
        (10, [5, 6], [], "length"),
        (10, [EOS], [], "length"),
    ],
    ids=[
        "it goes on",
        "an empty block",
        "EOS first",
        "EOS in the middle",
        "EOS last",
        "the first of two EOS",
        "the limit inside",
        "the limit at the end",
        "one short of the limit",
        "EOS as the last token allowed",
        "EOS behind the limit",
        "EOS and limit at once",
        "nothing left",
        "EOS with nothing left",
    ],
)
def test_a_block_is_cut_where_the_answer_ends(
    emitted: int, block: list[int], kept: list[int], finish: str | None
) -> None:
    assert RULES.cut(emitted, block) == (kept, finish)


def test_a_block_is_left_as_it_was() -> None:
    block = [5, EOS, 7]
    RULES.cut(0, block)
    assert block == [5, EOS, 7]


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12), st.data())
def test_blocks_of_any_size_end_as_single_tokens_do(
    tokens: list[int], limit: int, data: st.DataObject
) -> None:
    rules = StopRules(frozenset({EOS}), limit)

    def answer(sizes: list[int]) -> tuple[list[int], str | None]:
        output: list[int] = []
        rest = tokens
        for size in sizes:
            kept, finish = rules.cut(len(output), rest[:size])
            output, rest = output + kept, rest[size:]
            if finish:
                return output, finish
        return output, None

    sizes = data.draw(st.lists(st.integers(1, 6), min_size=30, max_size=30))
    assert answer(sizes) == answer([1] * 30)


@pytest.mark.parametrize(
    ("wanted", "prompt", "context", "limit"),
    [(10, 90, 200, 10), (10, 190, 200, 10), (10, 195, 200, 5), (10, 200, 200, 0), (1, 1, 2, 1)],
)
def test_an_answer_is_as_long_as_asked_or_as_the_context_allows(
    wanted: int, prompt: int, context: int, limit: int
) -> None:
    assert answer_limit(wanted, prompt, context) == limit


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def spell(ids: Sequence[int]) -> str:
    """One letter for each id up to 25; 26 is a special token, which has no text."""
    return "".join(LETTERS[index] for index in ids if index < len(LETTERS))


def ids_of(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def ending(*stop: str, limit: int = 50) -> Ending:
    return Ending(StopRules(frozenset({26}), limit, stop), spell)


@pytest.mark.parametrize(
    ("stop", "text", "kept", "finish"),
    [
        (["xyz"], "abcxyzdef", "abcxyz", "stop"),
        (["xyz"], "abcxyabc", "abcxyabc", None),
        (["bc", "abcd"], "abcdef", "abc", "stop"),
        (["d", "cd"], "abcdef", "abcd", "stop"),
        (["aab"], "aaab", "aaab", "stop"),
        (["a"], "a", "a", "stop"),
    ],
    ids=["in the middle", "only begun", "the earlier end", "both at once", "overlapping", "one"],
)
@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_an_answer_ends_with_the_token_that_completes_a_stop_string(
    stop: list[str], text: str, kept: str, finish: str | None, size: int
) -> None:
    answer, output = ending(*stop), []
    ids = ids_of(text)
    for start in range(0, len(ids), size):
        output += answer.cut(ids[start : start + size])
        if answer.finish is not None:
            break
    assert (spell(output), answer.finish) == (kept, finish)
    assert answer.emitted == len(kept)


def test_an_eos_before_a_stop_string_ends_the_answer_there() -> None:
    answer = ending("cd")
    assert answer.cut([0, 1, 26, 2, 3]) == [0, 1, 26]
    assert answer.finish == "stop"


def test_a_stop_string_that_ends_at_the_limit_is_a_stop() -> None:
    answer = ending("cd", limit=4)
    assert answer.cut(ids_of("abcdef")) == ids_of("abcd")
    assert answer.finish == "stop"
    beyond = ending("cd", limit=3)
    assert beyond.cut(ids_of("abcdef")) == ids_of("abc")
    assert beyond.finish == "length"


def test_a_special_token_inside_does_not_hide_a_stop_string() -> None:
    answer = Ending(StopRules(frozenset(), 9, ("cd",)), spell)
    assert answer.cut([2, 26, 3, 4]) == [2, 26, 3]


@example(text="aaca", stop=["c", "aca"], sizes=[3])  # the longer one begins first and ends last
@given(
    st.text("abc", max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
    st.lists(st.integers(0, 4), max_size=12),
)
def test_text_in_pieces_is_cut_like_the_whole(text: str, stop: list[str], sizes: list[int]) -> None:
    whole = min((text.find(word) for word in stop if word in text), default=len(text))
    pieces, start, stopped = [], 0, StopText(stop)
    for size in [*sizes, len(text)]:
        pieces.append(stopped.push(text[start : start + size]))
        start += size
    pieces.append(stopped.flush())
    assert "".join(pieces) == text[:whole]


def test_nothing_is_held_back_that_cannot_begin_a_stop_string() -> None:
    stopped = StopText(["\ndef"])
    assert [stopped.push(piece) for piece in ("a = 1\n", "b", "\nd", "ef x", "more")] == [
        "a = 1", "\nb", "", "", ""
    ]  # fmt: skip
    assert stopped.flush() == ""
