"""Where an answer ends: EOS and the token limit anywhere in a block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.decoding.stopping import StopRules, answer_limit

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
