"""``draft_quality`` plays the rounds that the system runs: by hand, and beside real requests."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from autodraft.decoding.retrieval import AcceptanceTable, Continuations, Retriever
from autodraft.decoding.stopping import StopRules
from autodraft.engine.drafter import Drafter
from autodraft.models.runner import ModelRunner
from autodraft.policy import ChainPolicy, FixedTreePolicy, TreeLimits
from autodraft.tree.draft_tree import DraftTree, node_depths
from autodraft.tree.growth import TreeGrowth
from tests.fakes import greedy_reference, prompt_of, speculate, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WIDTH, DEPTH = 3, 4
PROMPT = prompt_of(20, seed=4)
LIMIT = 60


@pytest.fixture
def quality(benchmark_folder: None) -> dict[str, ModuleType]:
    """The benchmark's modules, imported as the script imports them."""
    import _draft_models
    import _draft_rounds

    return {"models": _draft_models, "rounds": _draft_rounds}


# ------------------------------------------------------------------------------- rounds by hand


def chain_rounds(
    rounds: ModuleType, pattern: str, depth: int, limit: int = 1000
) -> list[list[int]]:
    """Play a chain over an answer; ``pattern`` holds R (right) or W for each token after the first.

    Returns what ``play`` gives for one guesser: the accepted lengths of its rounds.
    """
    agrees = np.array([False, *(letter == "R" for letter in pattern)])
    answer = rounds.KnownAnswer([1], range(len(agrees)), limit)
    played: list[list[int]] = rounds.play(len(agrees), [rounds.Chain(answer, agrees, depth)])
    return played


@pytest.mark.parametrize(
    ("pattern", "depth", "expected"),
    [
        ("RRRRRRRRRR", 4, [4, 4]),  # always right: 10 tokens in 2 rounds, depth + 1
        ("RRRRRRR", 4, [4, 2]),  # the answer ends inside the second round
        ("WWWWW", 4, [0, 0, 0, 0, 0]),  # never right: a round for every token
        ("RRWRWWRRR", 3, [2, 1, 0, 3]),
        ("RRWRWWRRR", 1, [1, 0, 1, 0, 1, 1]),
        ("WRWRWR", 8, [0, 1, 1, 1]),
    ],
)
def test_a_chain_is_accepted_up_to_its_first_wrong_token(
    quality: dict[str, ModuleType], pattern: str, depth: int, expected: list[int]
) -> None:
    assert chain_rounds(quality["rounds"], pattern, depth) == [expected]


def test_the_bonus_token_takes_one_of_the_tokens_that_are_left(
    quality: dict[str, ModuleType],
) -> None:
    # Eight tokens were all that was allowed: the second round has two left, and drafts one.
    assert chain_rounds(quality["rounds"], "RRRRRRR", 4, limit=8) == [[4, 1]]


def test_an_answer_of_one_token_has_no_round(quality: dict[str, ModuleType]) -> None:
    assert chain_rounds(quality["rounds"], "", 4) == [[]]


#            5
#         7     8
#             9   6
#           1
TREE = np.array([-1, 0, 0, 2, 2, 3])
TREE_TOKENS = np.array([5, 7, 8, 9, 6, 1])


@pytest.mark.parametrize(
    ("continuation", "expected"),
    [([7, 9], 1), ([8, 9, 1, 4], 3), ([8, 6, 1], 2), ([8], 1), ([9, 1], 0), ([], 0)],
)
def test_the_path_of_a_tree_is_walked_along_the_answer(
    quality: dict[str, ModuleType], continuation: list[int], expected: int
) -> None:
    tree = DraftTree(TREE_TOKENS, TREE, node_depths(TREE), np.zeros(6))
    assert quality["rounds"].accepted_length(tree, continuation) == expected


def two_level_growth(root: int) -> TreeGrowth:
    """Likeliest first: token 1 (0.6), 1-2 (0.45), 3 (0.3), 1-4 (0.1), 3-2 (0.09)."""
    growth = TreeGrowth(root)
    growth.add_level(np.array([0]), np.array([[1, 3]]), np.log([[0.6, 0.3]]))
    pairs = np.array([[2, 4], [2, 5]])
    growth.add_level(np.array([1, 2]), pairs, np.log([[0.75, 1 / 6], [0.3, 0.1]]))
    return growth


def test_rounds_of_best_trees_by_hand(quality: dict[str, ModuleType]) -> None:
    rounds = quality["rounds"]
    answer = rounds.KnownAnswer([1], [9, 3, 2, 9, 1, 4, 9, 1, 2, 9], limit=1000)
    asked: list[int] = []

    def growth_at(position: int) -> TreeGrowth:
        asked.append(position)
        return two_level_growth(answer.tokens[position - 1])

    sizes = (1, 2, 3, 4, 5)
    trees = [rounds.BestTree(answer, growth_at, size, 2) for size in sizes]
    assert rounds.play(10, trees) == [
        [0, 0, 0, 1, 0, 1, 0],  # sends 1:              3 | 2 | 9 | 1 4 | 9 | 1 2 | 9
        [0, 0, 0, 1, 0, 2],  # and 1-2:                 3 | 2 | 9 | 1 4 | 9 | 1 2 9
        [1, 0, 1, 0, 2],  # and 3:                      3 2 | 9 | 1 4 | 9 | 1 2 9
        [1, 0, 2, 2],  # and 1-4:                       3 2 | 9 | 1 4 9 | 1 2 9
        [2, 2, 2],  # and 3-2:                          3 2 9 | 1 4 9 | 1 2 9
    ]
    assert asked == sorted(asked)


class SpyRetriever(Retriever):
    """Remembers how deep it was asked to go, by the tokens of the context."""

    def __init__(self) -> None:
        super().__init__(AcceptanceTable())
        self.asked: dict[int, int] = {}

    def propose(self, context: Sequence[int], max_depth: int) -> Continuations:
        self.asked[len(context)] = max_depth
        return super().propose(context, max_depth)


def test_retrieval_goes_no_deeper_than_the_tree_and_the_room_that_is_left(
    quality: dict[str, ModuleType],
) -> None:
    rounds, spy = quality["rounds"], SpyRetriever()
    answer = rounds.KnownAnswer([90, 91], range(8), limit=8)  # nothing repeats, nothing is right
    tree = rounds.BestTree(answer, lambda _: TreeGrowth(0), 8, 4, spy)
    assert rounds.play(8, [tree]) == [[0] * 7]
    assert spy.asked == {3: 4, 4: 4, 5: 4, 6: 3, 7: 2, 8: 1}  # the last token needs no draft


def test_retrieval_is_grafted_on_a_copy(quality: dict[str, ModuleType]) -> None:
    rounds = quality["rounds"]
    # The context repeats itself, and the growth never holds what comes next.
    repeated = [11, 12, 13, 14, 15, 16] * 6
    answer = rounds.KnownAnswer(repeated, [*repeated, *repeated], limit=1000)
    bare = TreeGrowth(0)
    tree = rounds.BestTree(answer, lambda _: bare, 8, 4, Retriever(AcceptanceTable()))
    plain = rounds.BestTree(answer, lambda _: bare, 8, 4)
    with_retrieval, without = rounds.play(len(answer.tokens), [tree, plain])
    assert without == [0] * 71
    assert sum(with_retrieval) + len(with_retrieval) >= 71
    assert max(with_retrieval) == 4
    assert bare.num_nodes == 0


# ------------------------------------------------------------------- what the system really runs


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_model(seed=1)


@pytest.fixture(scope="module")
def draft() -> Any:
    return tiny_model(seed=1, num_hidden_layers=1)


def known(
    quality: dict[str, ModuleType], target: Any, eos_ids: Sequence[int] = (), limit: int = LIMIT
) -> Any:
    rules = StopRules(frozenset(eos_ids), limit)
    answer, seconds = quality["models"].greedy_answer(ModelRunner(target, "target"), PROMPT, rules)
    assert len(seconds) == len(answer.tokens) - 1
    return answer


def emitted(answer: Any, lengths: Sequence[int]) -> list[int]:
    """Tokens of each round, cut at the answer's end."""
    left, blocks = len(answer.tokens) - 1, []
    for length in lengths:
        blocks.append(min(length + 1, left))
        left -= blocks[-1]
    return blocks


def really_emitted(
    target: Any, drafter: Drafter, policy: Any, eos_ids: Sequence[int], limit: int
) -> list[int]:
    runner = ModelRunner(target, "target")
    answer = speculate(runner, drafter, policy, PROMPT, limit, eos_ids)
    return [round_.emitted_tokens for round_ in answer.request.rounds]


def eos_of(target: Any) -> tuple[int]:
    """A token that ends the answer in its second half."""
    answer = greedy_reference(target, PROMPT, LIMIT)
    return (next(token for token in answer[30:] if token not in answer[:30]),)


def test_the_known_answer_is_plain_decodings(quality: dict[str, ModuleType], target: Any) -> None:
    answer = known(quality, target)
    assert answer.tokens == greedy_reference(target, PROMPT, LIMIT)
    assert answer.limit == LIMIT
    ended = known(quality, target, eos_of(target))
    assert ended.tokens == greedy_reference(target, PROMPT, LIMIT, frozenset(eos_of(target)))
    assert 30 < len(ended.tokens) < LIMIT


@pytest.mark.parametrize("ends_early", [False, True])
def test_chains_have_the_rounds_of_a_real_run(
    quality: dict[str, ModuleType], target: Any, draft: Any, ends_early: bool
) -> None:
    eos_ids = eos_of(target) if ends_early else ()
    answer, runner = known(quality, target, eos_ids), ModelRunner(draft, "draft")
    agrees = quality["models"].token_ranks(runner, answer, ()) == 0
    assert 0.1 < agrees.mean() < 0.9
    rounds, depths = quality["rounds"], range(1, 9)
    chains = [rounds.Chain(answer, agrees, depth) for depth in depths]
    for depth, lengths in zip(depths, rounds.play(len(agrees), chains), strict=True):
        policy = ChainPolicy(TreeLimits(1, depth, depth))
        expected = really_emitted(target, Drafter(runner), policy, eos_ids, LIMIT)
        assert emitted(answer, lengths) == expected


@pytest.mark.parametrize("ends_early", [False, True])
def test_best_trees_have_the_rounds_of_a_real_run(
    quality: dict[str, ModuleType], target: Any, draft: Any, ends_early: bool
) -> None:
    eos_ids = eos_of(target) if ends_early else ()
    answer, runner = known(quality, target, eos_ids), ModelRunner(draft, "draft")
    rounds, sizes = quality["rounds"], (2, 5, 12, 27)
    growths = quality["models"].Growths(Drafter(runner), answer, WIDTH, DEPTH)
    trees = [rounds.BestTree(answer, growths.at, size, DEPTH) for size in sizes]
    played = rounds.play(len(answer.tokens), trees)
    assert len({len(lengths) for lengths in played}) > 1  # the sizes do not all play alike
    for size, lengths in zip(sizes, played, strict=True):
        policy = FixedTreePolicy(TreeLimits(WIDTH, DEPTH, size))
        expected = really_emitted(target, Drafter(runner), policy, eos_ids, LIMIT)
        assert emitted(answer, lengths) == expected


def chances(table: AcceptanceTable) -> list[float]:
    """What a table has learned, all of it."""
    return [table.probability(length, rank) for length in range(1, 17) for rank in range(3)]


@pytest.mark.parametrize("draft_context", [2048, 50], ids=["", "beyond the draft's context"])
def test_trees_with_retrieval_have_the_rounds_of_real_runs_that_learn_on(
    quality: dict[str, ModuleType], target: Any, draft_context: int
) -> None:
    short = tiny_model(seed=1, num_hidden_layers=1, max_position_embeddings=draft_context)
    answer, runner = known(quality, target), ModelRunner(short, "draft")
    rounds, models, sizes = quality["rounds"], quality["models"], (2, 5, 12, 27)
    theirs, ours = ([AcceptanceTable() for _ in sizes] for _ in range(2))
    growths = models.Growths(Drafter(runner), answer, WIDTH, DEPTH)
    plain = [rounds.BestTree(answer, growths.at, size, DEPTH) for size in sizes]
    without = rounds.play(LIMIT, plain)
    for _ in range(3):
        growths = models.Growths(Drafter(runner), answer, WIDTH, DEPTH)
        trees = [
            rounds.BestTree(answer, growths.at, size, DEPTH, Retriever(table))
            for size, table in zip(sizes, ours, strict=True)
        ]
        played = rounds.play(LIMIT, trees)
        assert played != without
        for size, table, lengths in zip(sizes, theirs, played, strict=True):
            policy = FixedTreePolicy(TreeLimits(WIDTH, DEPTH, size))
            drafter = Drafter(runner, retriever=Retriever(table))
            expected = really_emitted(target, drafter, policy, (), LIMIT)
            assert emitted(answer, lengths) == expected
    assert [chances(table) for table in ours] == [chances(table) for table in theirs]
    assert all(chances(table) != chances(AcceptanceTable()) for table in ours)


def test_a_draft_with_a_short_context_stops_where_it_stops_in_a_real_run(
    quality: dict[str, ModuleType], target: Any
) -> None:
    short = tiny_model(seed=1, num_hidden_layers=1, max_position_embeddings=50)
    answer, runner = known(quality, target), ModelRunner(short, "draft")
    rounds, models = quality["rounds"], quality["models"]
    agrees = models.token_ranks(runner, answer, ()) == 0
    assert agrees[:30].any()
    assert not agrees[30:].any()  # 20 tokens of prompt, 30 of answer
    growths = models.Growths(Drafter(runner), answer, WIDTH, DEPTH)
    chain = rounds.Chain(answer, agrees, 4)
    tree = rounds.BestTree(answer, growths.at, 12, DEPTH)
    played = rounds.play(LIMIT, [chain, tree])
    policies = [ChainPolicy(TreeLimits(1, 4, 4)), FixedTreePolicy(TreeLimits(WIDTH, DEPTH, 12))]
    for policy, lengths in zip(policies, played, strict=True):
        expected = really_emitted(target, Drafter(runner), policy, (), LIMIT)
        assert emitted(answer, lengths) == expected


def test_ranks_are_those_of_the_stock_class(
    quality: dict[str, ModuleType], target: Any, draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, answer = quality["models"], known(quality, target)
    monkeypatch.setattr(models, "CHUNK", 7)  # several chunks, the last one shorter
    with torch.inference_mode():
        logits = draft(input_ids=torch.tensor([PROMPT + answer.tokens])).logits[0]
    order = logits[len(PROMPT) - 1 : -1].argsort(-1, descending=True)
    place = (order == torch.tensor(answer.tokens)[:, None]).int().argmax(-1)
    expected = place.clamp(max=4).tolist()
    expected[0] = 4  # prefill's token is no round's
    found = models.token_ranks(ModelRunner(draft, "draft"), answer, ())
    assert found.tolist() == expected
    assert set(expected) == {0, 1, 2, 3, 4}
    excluded = models.token_ranks(ModelRunner(draft, "draft"), answer, answer.tokens)
    assert (excluded == 4).all()


def test_a_drafter_cannot_go_back_in_an_answer(
    quality: dict[str, ModuleType], target: Any, draft: Any
) -> None:
    drafter = Drafter(ModelRunner(draft, "draft"))
    growths = quality["models"].Growths(drafter, known(quality, target), WIDTH, DEPTH)
    first = growths.at(5)
    assert growths.at(5) is first
    with pytest.raises(AssertionError, match="does not go back"):
        growths.at(4)
