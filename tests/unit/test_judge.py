"""What the target chooses, what it leaves undecided below float32, and who decides it then."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from autodraft.decoding.sampler import Sampler
from autodraft.decoding.sampling import Sampling
from autodraft.decoding.stopping import StopRules
from autodraft.decoding.verification import UNDECIDED
from autodraft.decoding.wish import Wish
from autodraft.engine.drafter import Drafter
from autodraft.engine.judge import Judge, is_exact
from autodraft.engine.kept import Kept
from autodraft.engine.rounds import Rounds
from autodraft.engine.session import Method, Speculative
from autodraft.engine.streamed import ServerOnly
from autodraft.engine.verifier import Verifier
from autodraft.models.runner import ModelRunner
from autodraft.models.sharp_head import RowSharpener, SharpHead
from autodraft.policy import ChainPolicy, FixedTreePolicy, TreeLimits
from tests.fakes import answer_by, greedy_reference, prompt_of, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

RULES = StopRules(frozenset({5}), 100)
PROMPT = prompt_of(12, seed=6)
EXACT = Wish(exact=True)
ROOT_ONLY = np.array([0]), np.array([-1])


class HandMade:
    """A runner of six tokens in bfloat16 whose sharper logits are given."""

    vocab_size = 6

    def __init__(self, sharp: Sequence[float] | None = None, *, rounds_off: bool = True) -> None:
        self.rounds_off = rounds_off
        self.asked = 0
        self._head: Any = None
        if sharp is not None:
            table = np.array(sharp)
            self._head = SimpleNamespace(faithful=True, logits=lambda row, columns: table[columns])

    def sharpener(self, row: int, highest: float) -> RowSharpener:
        self.asked += 1
        return RowSharpener(cast("SharpHead | None", self._head), row, highest, torch.bfloat16)


def judge_of(runner: HandMade, wish: Wish = EXACT) -> Judge:
    return Judge(cast("ModelRunner", runner), [0], RULES, wish)


def rows(*logits: Sequence[float]) -> torch.Tensor:
    return torch.tensor(logits)


# The highest logit is 8, so the margin is 8 · 2⁻⁷ = 0.0625.
NEAR = [0.0, 8.0, 7.95, 0.0, 0.0, 0.0]
CLEAR = [0.0, 8.0, 7.90, 0.0, 0.0, 0.0]


def test_a_near_tie_is_left_undecided_until_a_row_of_its_own_decides_it() -> None:
    judge = judge_of(HandMade())
    assert judge.choices(rows(NEAR), *ROOT_ONLY)[0] == UNDECIDED
    assert judge.redecided == 1
    assert judge.decide(rows(NEAR)) == 1
    assert judge.redecided == 1


def test_a_clear_choice_is_made_at_once() -> None:
    judge = judge_of(HandMade())
    assert judge.choices(rows(CLEAR), *ROOT_ONLY)[0] == 1
    assert judge.redecided == 0


def test_a_tie_goes_to_the_lowest_id_when_it_is_decided() -> None:
    tie = [0.0, 0.0, 8.0, 8.0, 8.0, 0.0]
    judge = judge_of(HandMade())
    assert judge.choices(rows(tie), *ROOT_ONLY)[0] == UNDECIDED
    assert judge.decide(rows(tie)) == 2


@pytest.mark.parametrize(
    ("sharp", "choice"),
    [
        ([0, 7.90, 7.98, 0, 0, 0], 2),
        ([0, 8.03, 7.95, 0, 0, 0], 1),
        ([0, 7.97, 7.98, 0, 0, 0], UNDECIDED),
    ],
    ids=["the other way round", "further apart", "still close"],
)
def test_sharper_logits_tell_close_tokens_apart_where_they_can(
    sharp: list[float], choice: int
) -> None:
    assert judge_of(HandMade(sharp)).choices(rows(NEAR), *ROOT_ONLY)[0] == choice


def test_a_single_row_is_decided_by_sharper_logits_however_close_they_are() -> None:
    assert judge_of(HandMade([0, 7.97, 7.98, 0, 0, 0])).decide(rows(NEAR)) == 2


def test_float32_decides_everything_at_once_and_asks_for_nothing_sharper() -> None:
    runner = HandMade(rounds_off=False)
    judge = judge_of(runner)
    assert judge.choices(rows(NEAR), *ROOT_ONLY)[0] == 1
    assert (judge.redecided, runner.asked) == (0, 0)


@pytest.mark.parametrize("exact", [False, None])
def test_without_exact_a_near_tie_is_decided_at_once(exact: bool | None) -> None:
    runner = HandMade()
    judge = judge_of(runner, Wish(exact=exact, top_logprobs=0))
    assert judge.choices(rows(NEAR), *ROOT_ONLY)[0] == 1
    assert (judge.redecided, runner.asked) == (0, 0)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_a_drawn_near_tie_is_one_in_logits_whatever_the_temperature(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=3)
    noise_only = Sampler(sampling, [0], {5}, 6)
    flat = np.zeros(6, dtype=np.float32)
    winner, gap = noise_only.choose(flat.copy())
    # Raise the others' common level until the second best is this far behind, in logits.
    for distance, choice in ((0.05, UNDECIDED), (0.08, winner)):
        logits = np.full(6, 8.0, dtype=np.float32)
        logits[winner] += distance - gap
        margin = float(logits.max()) / 128
        assert (distance < margin) == (choice == UNDECIDED)
        judge = judge_of(HandMade(), Wish(sampling, exact=True))
        assert judge.choices(torch.from_numpy(logits[None]), *ROOT_ONLY)[0] == choice
        assert judge.decide(torch.from_numpy(logits[None])) == winner


def test_penalties_make_a_near_tie_and_undo_one() -> None:
    wish = Wish(Sampling(presence_penalty=0.5), exact=True)
    for logits, choice in (
        ([0.0, 8.0, 7.5, 0.0, 0.0, 0.0], UNDECIDED),
        ([0.0, 8.0, 7.95, 0.0, 0.0, 0.0], 2),
    ):
        judge = judge_of(HandMade(), wish)
        judge.commit([1])
        assert judge.choices(rows(logits), *ROOT_ONLY)[0] == choice


def test_scores_come_once_for_each_token_also_where_it_was_left_undecided() -> None:
    judge = judge_of(HandMade(), Wish(exact=True, top_logprobs=2))
    choices = judge.choices(rows(CLEAR, NEAR), np.array([0, 1]), np.array([-1, 0]))
    assert [choices[0], choices[1]] == [1, UNDECIDED]
    assert judge.decide(rows(NEAR), [1]) == 1
    scores = judge.take_scores()
    assert judge.take_scores() == []
    total = np.log(np.exp([8.0, 7.90]).sum() + 4)
    assert [score.gap for score in scores] == pytest.approx([0.10, 0.05], abs=1e-6)
    assert scores[0].logprob == pytest.approx(8.0 - total, abs=1e-6)
    assert [token for token, _ in scores[0].top] == [1, 2]
    assert [value for _, value in scores[0].top] == pytest.approx([8 - total, 7.9 - total])


# ------------------------------------------------------------- the verifier, and a whole answer


class Doubtful(ModelRunner):
    """A model in float32 that holds choices closer than ``margin`` to be open.

    Where ``row`` is set, only those behind that row of a forward.
    """

    rounds_off = True
    margin = 0.0
    row: int | None = None

    def sharpener(self, row: int, highest: float) -> RowSharpener:
        found = RowSharpener(None, row, highest, torch.float16)
        found.margin = self.margin if self.row in (None, row) else 0.0
        return found


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture
def doubtful(model: Any) -> Doubtful:
    return Doubtful(model, "doubtful")


def chain_of(runner: ModelRunner) -> Method:
    policy = ChainPolicy(TreeLimits(width=1, max_depth=4, node_budget=4))
    return Speculative("chain", Rounds(policy, Drafter(runner)))


def tree_of(runner: ModelRunner) -> Method:
    policy = FixedTreePolicy(TreeLimits(width=3, max_depth=3, node_budget=9))
    return Speculative("fixed_tree", Rounds(policy, Drafter(runner)))


def test_where_everything_is_close_every_round_is_decided_by_a_token_of_its_own(
    doubtful: Doubtful, model: Any
) -> None:
    doubtful.margin = np.inf
    answer = answer_by(chain_of(doubtful), doubtful, PROMPT, 20, wish=EXACT)
    assert answer.tokens == greedy_reference(model, PROMPT, 20)
    assert answer.accepted == [0] * 19
    record = answer.request.record
    assert record.redecided_tokens == answer.link.verifier.redecided == 19
    assert record.target_forwards == 1 + 2 * 19
    assert record.exact


@pytest.mark.parametrize("make", [chain_of, tree_of])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.8, seed=4, repetition_penalty=1.2)]
)
def test_a_token_decided_again_in_mid_path_changes_no_answer(
    make: Any, sampling: Sampling, doubtful: Doubtful, model: Any
) -> None:
    plain = ModelRunner(model, "plain")
    expected = answer_by(ServerOnly("server_only"), plain, PROMPT, 60, wish=Wish(sampling)).tokens
    doubtful.margin = 0.3
    answer = answer_by(make(plain), doubtful, PROMPT, 60, wish=Wish(sampling, exact=True))
    assert answer.tokens == expected
    record = answer.request.record
    assert 0 < record.redecided_tokens < len(answer.accepted)
    assert record.target_forwards == 1 + len(answer.accepted) + record.redecided_tokens


@pytest.mark.parametrize(
    ("row", "accepted"),
    [(9, 3), (0, 0), (2, 1), (4, 2), (5, 3)],
    ids=["nothing open", "open at the root", "behind a token", "behind two", "at the leaf"],
)
def test_the_cache_behind_a_token_decided_again_is_what_a_fresh_prefill_gives(
    row: int, accepted: int, doubtful: Doubtful, model: Any
) -> None:
    reference = greedy_reference(model, PROMPT, 6)
    doubtful.margin, doubtful.row = np.inf, row
    kept = Kept()
    verifier = Verifier(
        doubtful, np.array(PROMPT), StopRules(frozenset(), 50), 8, None, EXACT, kept
    )
    assert verifier.prefill() == reference[0]
    wrong = [(token + 1) % 128 for token in reference]
    tokens = np.array([wrong[1], reference[1], wrong[2], reference[2], reference[3]])
    path, bonus = verifier.verify(tokens, np.array([0, 0, 2, 2, 4]))
    assert path.tolist() == [2, 4, 5][:accepted]
    assert [*tokens[path - 1].tolist(), bonus] == reference[1 : accepted + 2]
    assert verifier.redecided == (row != 9)
    assert verifier.forwards == 2 + (row != 9)
    verifier.release()
    context = PROMPT + reference[: accepted + 2]
    cache, held = kept.take(doubtful, context, 80)
    assert held == len(context) - 1
    fresh = doubtful.new_cache(80)
    doubtful.prefill(fresh, context[:-1])
    found, expected = (doubtful.prefill(one, context[-1:]) for one in (cache, fresh))
    assert torch.allclose(found, expected, atol=1e-5)


def test_in_bfloat16_rounds_decide_close_tokens_again_and_plain_decoding_never_does() -> None:
    model = tiny_model(scale=2.0).to(torch.bfloat16)
    target = ModelRunner(model, "target")
    assert target.rounds_off
    plain = answer_by(ServerOnly("server_only"), target, PROMPT, 200, wish=EXACT)
    drafted = answer_by(chain_of(target), target, PROMPT, 200, wish=EXACT)
    loose = answer_by(chain_of(target), target, PROMPT, 200, wish=Wish(exact=False))
    assert plain.request.record.redecided_tokens == 0
    assert plain.request.record.target_forwards == 200
    again = drafted.request.record.redecided_tokens
    assert 0 < again < len(drafted.accepted)
    assert drafted.request.record.target_forwards == 1 + len(drafted.accepted) + again
    assert loose.request.record.redecided_tokens == 0
    assert len(drafted.tokens) == len(loose.tokens) == 200


def test_in_float32_exact_changes_nothing_and_decides_nothing_again(model: Any) -> None:
    target = ModelRunner(model, "target")
    answer = answer_by(chain_of(target), target, PROMPT, 40, wish=EXACT)
    assert answer.tokens == greedy_reference(model, PROMPT, 40)
    assert answer.request.record.redecided_tokens == 0


# ----------------------------------------------------------------- whether it is worth its time

FLOAT32 = cast("ModelRunner", SimpleNamespace(rounds_off=False, eps=2**-23))
BFLOAT16 = cast("ModelRunner", SimpleNamespace(rounds_off=True, eps=2**-7))
FLOAT16 = cast("ModelRunner", SimpleNamespace(rounds_off=True, eps=2**-10))


@pytest.mark.parametrize("asked", [None, False, True])
def test_in_float32_exact_is_never_wanted(asked: bool | None) -> None:
    assert not is_exact(asked, FLOAT32)


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("runner", [BFLOAT16, FLOAT16])
def test_what_the_client_asks_for_wins(asked: bool, runner: ModelRunner) -> None:
    assert is_exact(asked, runner) is asked


def test_left_open_it_is_on_where_few_tokens_are_open() -> None:
    assert is_exact(None, FLOAT16)
    assert not is_exact(None, BFLOAT16)
