"""The n-gram index against a plain search, the table of chances, and tries small enough to draw."""

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.decoding.retrieval import (
    MAX_CONTINUATIONS,
    MAX_LENGTH,
    MAX_MATCH,
    MAX_NGRAM,
    MAX_NODES,
    PRIOR_TRIALS,
    AcceptanceTable,
    Continuations,
    Match,
    NgramIndex,
    Retriever,
)

texts = st.lists(st.integers(0, 2), max_size=60)


def index_of(*pieces: list[int]) -> NgramIndex:
    index = NgramIndex()
    for piece in pieces:
        index.append(piece)
    return index


def searched(text: list[int]) -> list[Match]:
    """Find the matches by comparing every earlier place with the end, token by token."""
    agreements = {}
    for position in range(1, len(text)):
        length = 0
        while (
            length < min(MAX_MATCH, position) and text[position - 1 - length] == text[-1 - length]
        ):
            length += 1
        agreements[position] = length
    longest = min(MAX_NGRAM, max(agreements.values(), default=0))
    found = [Match(length, at) for at, length in agreements.items() if length >= longest > 0]
    return found[::-1][:MAX_CONTINUATIONS]


def paths(found: Continuations) -> dict[tuple[int, ...], float]:
    """Every node by its tokens from the root, with its conditional probability."""
    prefixes: list[tuple[int, ...]] = []
    for token, parent in zip(found.tokens.tolist(), found.parents.tolist(), strict=True):
        prefixes.append(((*prefixes[parent], token)) if parent >= 0 else (token,))
    return dict(zip(prefixes, np.exp(found.log_probs).tolist(), strict=True))


def propose(context: list[int], max_depth: int) -> Continuations:
    return Retriever(AcceptanceTable()).propose(context, max_depth)


# ---------------------------------------------------------------------------------- the index


@given(texts, st.integers(0, 60))
def test_the_index_finds_what_a_plain_search_finds(text: list[int], cut: int) -> None:
    assert index_of(text[:cut], text[cut:]).matches() == searched(text)


@given(st.lists(st.integers(0, 1), min_size=20, max_size=45))
def test_matches_longer_than_the_ngrams_have_their_true_length(period: list[int]) -> None:
    text = period * 3
    matches = index_of(text).matches()
    assert matches == searched(text)
    assert max(match.length for match in matches) > MAX_NGRAM


def test_matches_are_the_most_recent_ones_first() -> None:
    #        0  1  2  3  4  5  6  7  8
    text = [7, 8, 1, 7, 8, 2, 9, 7, 8]
    assert index_of(text).matches() == [Match(2, 5), Match(2, 2)]


def test_only_the_most_recent_occurrences_are_kept() -> None:
    text = [5, 1, 5, 2, 5, 3, 5, 4, 5, 6, 5]
    assert [match.position for match in index_of(text).matches()] == [9, 7, 5, 3]


def test_a_match_is_followed_back_no_further_than_the_ceiling_and_the_beginning() -> None:
    period = list(range(50))
    assert index_of(period * 2).matches() == [Match(MAX_MATCH, 50)]
    assert index_of(period[:20] * 2).matches() == [Match(20, 20)]


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3]])
def test_where_nothing_was_repeated_nothing_matches(text: list[int]) -> None:
    assert index_of(text).matches() == []
    assert propose([*text, 9], 5).tokens.tolist() == []


# ---------------------------------------------------------------------------------- the table


@pytest.mark.parametrize(
    ("length", "rank", "expected"),
    [(1, 0, 0.25), (3, 0, 0.5), (9, 0, 0.75), (3, 1, 0.2), (3, 2, 0.1), (3, 3, 0.1)],
)
def test_an_untaught_table_knows_its_prior(length: int, rank: int, expected: float) -> None:
    assert AcceptanceTable().probability(length, rank) == pytest.approx(expected)


def test_the_prior_is_worth_its_trials() -> None:
    table = AcceptanceTable()
    for _ in range(8):
        table.learn(3, 0, hit=True)
    assert PRIOR_TRIALS == 8
    assert table.probability(3, 0) == pytest.approx((4 + 8) / 16)
    for _ in range(16):
        table.learn(3, 0, hit=False)
    assert table.probability(3, 0) == pytest.approx(12 / 32)


def test_what_is_learned_stays_in_its_cell() -> None:
    table, untaught = AcceptanceTable(), AcceptanceTable()
    table.learn(3, 0, hit=True)
    cells = [(length, rank) for length in range(1, MAX_LENGTH + 1) for rank in range(3)]
    changed = [cell for cell in cells if table.probability(*cell) != untaught.probability(*cell)]
    assert changed == [(3, 0)]


def test_long_matches_share_a_cell_and_so_do_late_ranks() -> None:
    table = AcceptanceTable()
    table.learn(99, 7, hit=True)
    assert table.probability(MAX_LENGTH, 2) == table.probability(1000, 3)
    assert table.probability(MAX_LENGTH, 2) > AcceptanceTable().probability(MAX_LENGTH, 2)


# ---------------------------------------------------------------------------------- the trie


def test_one_earlier_occurrence_gives_a_chain_that_grows_surer_with_its_depth() -> None:
    found = propose([1, 2, 3, 4, 5, 6, 1, 2], max_depth=3)
    assert found.tokens.tolist() == [3, 4, 5]
    assert found.parents.tolist() == [-1, 0, 1]
    # Two tokens agree, then three, then four: 2/5, 3/6, 4/7.
    assert np.exp(found.log_probs) == pytest.approx([0.4, 0.5, 4 / 7])


def test_occurrences_share_their_tokens_until_they_part() -> None:
    # 1 2 was followed by 3 4 and, more recently, by 3 5.
    found = paths(propose([1, 2, 3, 4, 0, 1, 2, 3, 5, 9, 1, 2], max_depth=2))
    assert list(found) == [(3,), (3, 5), (3, 4)]
    assert found[(3,)] == pytest.approx(2 / 5)
    assert found[(3, 5)] == pytest.approx(3 / 6)
    assert found[(3, 4)] == pytest.approx(0.4 * 3 / 6)


def test_among_siblings_of_one_length_the_more_frequent_comes_first() -> None:
    # 7 was followed by 1, by 1, and at last by 2.
    found = paths(propose([7, 1, 7, 1, 0, 7, 2, 9, 7], max_depth=1))
    assert list(found) == [(1,), (2,)]
    assert found[(1,)] == pytest.approx(0.25)
    assert found[(2,)] == pytest.approx(0.1)


def test_among_siblings_the_longer_match_comes_first() -> None:
    common = list(range(10, 18))
    text = [*common, 1, 3, 4, *common, 2, 5, *common]
    found = paths(propose([3, 4, 8, *text], max_depth=1))
    assert list(found) == [(2,), (1,)]  # both longer than an n-gram: as long as each other
    text = [5, *common, 1, 3, 4, *common, 2, 5, *common]
    assert list(paths(propose(text, max_depth=1))) == [(1,), (2,)]


def test_where_all_occurrences_go_on_alike_the_longest_match_counts() -> None:
    common = list(range(10, 18))
    text = [0, *common, 1, 2, 5, *common, 1, 3, 7, *common, 1, 4, 5, *common]
    assert sorted(match.length for match in index_of(text).matches()) == [8, 8, 9]
    assert paths(propose(text, max_depth=1)) == pytest.approx({(1,): 9 / 12})


def test_siblings_that_seem_surer_than_sure_share_what_there_is() -> None:
    common = list(range(10, 18))
    text = [1, *common, 2, 7, *common, 3, 8, *common, 4, 9, *common]
    found = paths(propose(text, max_depth=1))
    # By themselves 8/11, 0.4 · 8/11 and 0.2 · 8/11, which is 1.16 together.
    assert list(found) == [(4,), (3,), (2,)]
    assert list(found.values()) == pytest.approx([1 / 1.6, 0.4 / 1.6, 0.2 / 1.6])


def test_a_repetition_goes_on_beyond_the_end_of_the_text() -> None:
    assert propose([4, 4], max_depth=5).tokens.tolist() == [4] * 5
    assert propose([9, 1, 2, 3, 1], max_depth=7).tokens.tolist() == [2, 3, 1, 2, 3, 1, 2]


@given(texts, st.integers(0, 12))
def test_a_trie_is_closed_ordered_and_never_too_large(text: list[int], max_depth: int) -> None:
    found = propose([*text, 1], max_depth)
    size = len(found.tokens)
    assert len(found.parents) == len(found.log_probs) == size <= MAX_NODES
    assert (found.parents < np.arange(size)).all()
    assert len(paths(found)) == size  # no two nodes have one path: siblings differ
    assert max((len(path) for path in paths(found)), default=0) <= max_depth
    masses: dict[tuple[int, ...], float] = defaultdict(float)
    for path, chance in paths(found).items():
        masses[path[:-1]] += chance
    assert all(mass <= 1 + 1e-9 for mass in masses.values())


@given(texts)
def test_every_path_has_followed_the_match_somewhere(text: list[int]) -> None:
    context = [*text, 1]
    endless = [context[match.position :] * 9 for match in searched(context)]
    found = set(paths(propose(context, 5)))
    assert found == {tuple(follows[:depth]) for follows in endless for depth in range(1, 6)}


def test_a_trie_stops_at_its_ceiling_of_nodes() -> None:
    assert len(propose([4, 4], max_depth=1000).tokens) == MAX_NODES


# ---------------------------------------------------------------------------------- learning


def test_every_child_of_a_node_that_was_reached_is_one_trial() -> None:
    table = AcceptanceTable()
    retriever, context = Retriever(table), [1, 2, 3, 4, 0, 1, 2, 3, 5, 9, 1, 2]
    assert list(paths(retriever.propose(context, 3)))[:3] == [(3,), (3, 5), (3, 4)]
    retriever.propose([*context, 3, 4, 7], 3)
    assert table.probability(2, 0) == pytest.approx((8 * 2 / 5 + 1) / 9)  # 3 was right
    assert table.probability(3, 0) == pytest.approx((8 * 3 / 6) / 9)  # 5 was not
    assert table.probability(3, 1) == pytest.approx((8 * 0.4 * 3 / 6 + 1) / 9)  # 4 was
    # Below 4 came 0, and 7 was the truth; below 5 nothing was reached.
    assert table.probability(4, 0) == pytest.approx((8 * 4 / 7) / 9)
    assert table.probability(5, 0) == AcceptanceTable().probability(5, 0)


def test_the_truth_ends_the_lesson_where_it_leaves_the_trie() -> None:
    table, untaught = AcceptanceTable(), AcceptanceTable()
    retriever, context = Retriever(table), [1, 2, 3, 4, 5, 6, 1, 2]
    retriever.propose(context, 4)
    retriever.propose([*context, 9, 4, 5], 4)
    assert table.probability(2, 0) < untaught.probability(2, 0)
    for length in range(3, 7):
        assert table.probability(length, 0) == untaught.probability(length, 0)


def test_nothing_is_learned_twice_or_without_new_tokens() -> None:
    table = AcceptanceTable()
    retriever, context = Retriever(table), [1, 2, 3, 1, 2]
    for _ in range(3):
        retriever.propose(context, 1)
    assert table.probability(2, 0) == pytest.approx(2 / 5)
    retriever.propose([*context, 3], 0)
    retriever.propose([*context, 3, 8], 0)
    assert table.probability(2, 0) == pytest.approx((8 * 2 / 5 + 1) / 9)


def test_a_new_request_forgets_the_text_and_keeps_the_lesson() -> None:
    table = AcceptanceTable()
    retriever, context = Retriever(table), [1, 2, 3, 1, 2]
    retriever.propose(context, 1)
    retriever.propose([*context, 3], 1)
    learned = table.probability(2, 0)
    retriever.start()
    assert retriever.propose([5, 6, 1, 2], 4).tokens.tolist() == []
    retriever.start([1, 2, 8, 1])
    assert np.exp(retriever.propose([1, 2, 8, 1, 2], 1).log_probs) == pytest.approx([learned])


def test_a_prompt_given_at_the_start_is_the_same_as_one_in_the_context() -> None:
    prompt = [1, 2, 3, 4, 1]
    early, late = Retriever(AcceptanceTable()), Retriever(AcceptanceTable())
    early.start(prompt)
    first, second = early.propose([*prompt, 2], 3), late.propose([*prompt, 2], 3)
    assert paths(first) == paths(second) != {}


def test_a_table_taught_by_hits_makes_deep_continuations_worth_sending() -> None:
    table = AcceptanceTable()
    for _ in range(1000):
        table.learn(MAX_LENGTH, 0, hit=True)
    found = Retriever(table).propose(list(range(20)) * 2, 15)
    assert found.log_probs.sum() > math.log(0.95)
