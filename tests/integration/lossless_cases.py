"""Cases for the tests that output is lossless, and the two sides that answer them.

Tiny random models, wishes and trees; a target without a socket that can draft as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from autodraft.config import MethodSpec
from autodraft.decoding.sampling import GREEDY, Sampling
from autodraft.decoding.stopping import Ending, StopRules, StopText, answer_limit
from autodraft.decoding.text import TextStream
from autodraft.decoding.wish import Wish
from autodraft.engine.colocated import InPlace, LocalTarget
from autodraft.engine.methods import DraftSide, make_method, make_rounds
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.rounds import Meters
from autodraft.engine.session import Method, Request
from autodraft.engine.streamed import ServerOnly
from autodraft.engine.wishes import wish_of
from autodraft.models.runner import ModelRunner
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import pack_tokens
from tests.fakes import VOCAB, LoopbackLink, prompt_of, tiny_model

MOST_TOKENS = 24
SHORT_CONTEXT = 44  # behind a prompt of 40 it leaves 4 tokens


@dataclass(frozen=True)
class Models:
    """A target, and a draft that may know something of it.

    Attributes:
        family: transformers' model type.
        seed: Seed of the target's weights.
        scale: How sure the target is.
        draft: What the draft is, one of ``DRAFTS``.
        context: Most tokens of the target's context.
        draft_context: The same of the draft.
    """

    family: str
    seed: int
    scale: float
    draft: str
    context: int
    draft_context: int


@dataclass(frozen=True)
class Case:
    """An answer that is asked for twice: of a method, and of server-only.

    Attributes:
        models: Who answers.
        spec: The method.
        prompt: Token ids.
        sampling: How tokens are chosen.
        eos_ids: Token ids that end it.
        stop: Strings that end it.
        max_new_tokens: Most tokens, where the context has room for them.
        excluded: Token ids that the draft must not propose.
    """

    models: Models
    spec: MethodSpec
    prompt: list[int]
    sampling: Sampling
    eos_ids: frozenset[int]
    stop: tuple[str, ...]
    max_new_tokens: int
    excluded: frozenset[int]

    @property
    def rules(self) -> StopRules:
        """When the answer ends."""
        limit = answer_limit(self.max_new_tokens, len(self.prompt), self.models.context)
        return StopRules(self.eos_ids, limit, self.stop)


class Figures(NamedTuple):
    """What must not depend on the method."""

    tokens: list[int]
    finish: str
    output_tokens: int
    text: str


# --------------------------------------------------------------------------------- the two sides


@cache
def tiny(family: str, seed: int, scale: float, said: int | None, **config: int) -> ModelRunner:
    """Return a model; one that says every so manyth token only where ``said`` is given."""
    output_ids = None if said is None else np.arange(0, VOCAB, said)
    return ModelRunner(tiny_model(family, seed, scale=scale, **config), "tiny", output_ids)


DRAFTS: dict[str, dict[str, Any]] = {
    "first layer": {"num_hidden_layers": 1},
    "target itself": {},
    "cut head": {"said": 2},
    "stranger": {"seed": 99},
    "more tokens": {"num_hidden_layers": 1, "vocab_size": VOCAB + 16},
    "fewer tokens": {"num_hidden_layers": 1, "vocab_size": VOCAB - 28},
}


def target_of(models: Models) -> ModelRunner:
    context = models.context
    return tiny(models.family, models.seed, models.scale, None, max_position_embeddings=context)


def side_of(case: Case) -> DraftSide:
    """Return what drafts, having learned nothing yet."""
    models = case.models
    options = {"seed": models.seed, "said": None, **DRAFTS[models.draft]}
    context = models.draft_context
    runner = tiny(models.family, scale=models.scale, max_position_embeddings=context, **options)
    unknown = range(VOCAB, max(VOCAB, runner.vocab_size))
    known = [token for token in sorted(case.excluded) if token < runner.vocab_size]
    return DraftSide(runner=runner, excluded=[*known, *unknown])


def letters(tokens: Sequence[int]) -> str:
    """Spell tokens with few letters, so that stop strings occur."""
    return "".join(chr(ord("a") + token % 12) for token in tokens)


class Server(LoopbackLink):
    """A target that drafts as well where it is asked to, with what it is given."""

    def __init__(self, case: Case, side: DraftSide, spell: int = MOST_TOKENS) -> None:
        """Prepare.

        Args:
            case: Who answers.
            side: What it drafts with.
            spell: Streams end after so many tokens, as if the client had said stop by then.
        """
        super().__init__(target_of(case.models), sorted(case.eos_ids), letters)
        self._case = case
        self._side = side
        self._spell = spell
        self._first_token = 0

    def _answers(self, message: msg.ClientMessage) -> Sequence[msg.ServerMessage]:
        if isinstance(message, msg.Speculate):
            return self._speculate(message)
        return super()._answers(message)

    def _prefilled(self, prompt: Any) -> msg.Prefilled:
        self._prompt = prompt.tolist()
        answer = super()._prefilled(prompt)
        self._first_token = answer.token
        return answer

    def _speculate(self, asked: msg.Speculate) -> Sequence[msg.Block]:
        verifier, opened = self.verifier, self._open
        assert opened is not None
        wish = wish_of(opened, exact=False)
        rounds = make_rounds(self._case.spec, self._side, wish, self._case.eos_ids)
        ending = Ending(verifier.rules, letters)
        place = InPlace(rounds, LocalTarget(verifier, 128), self._prompt, ending)
        blocks = []
        if verifier.finish is None:
            place.start(self._first_token)
        while verifier.finish is None:
            done = place.round()
            nodes = {"num_nodes": done.record.num_nodes, "accepted": done.record.accepted_length}
            blocks.append(msg.Block(pack_tokens(done.tokens), msg.Finish.RUNNING, False, **nodes))
        place.finish()
        return [*blocks, msg.Block(b"", msg.Finish.STOP, True)]

    def _stream(self) -> Sequence[msg.Tokens]:
        pieces = []
        while self.verifier.finish is None and len(pieces) < self._spell:
            token = pack_tokens([self.verifier.step()])
            pieces.append(msg.Tokens(token, msg.Finish.RUNNING, False, 0, 0))
        return [*pieces, msg.Tokens(b"", msg.Finish.STOP, True, 0, 0)]


def answer(
    case: Case, method: Method, remote: RemoteTarget, *, reuse: bool = False
) -> tuple[Figures, Request]:
    """Return what must be the same, and the request; the text is put together as it is streamed."""
    wish = Wish(case.sampling, reuse=reuse)
    request = Request(remote, method, case.prompt, case.rules, Meters(), letters, wish)
    stream, ending, text, tokens = TextStream(letters), StopText(case.stop), "", []
    for block in request:
        tokens += block
        text += ending.push(stream.push(block))
    text += ending.push(stream.flush()) + ending.flush()
    record = request.record
    assert record.output_ids == tokens
    return Figures(tokens, record.finish_reason, record.output_tokens, text), request


def connect(case: Case, side: DraftSide, spell: int = MOST_TOKENS) -> RemoteTarget:
    return RemoteTarget(Server(case, side, spell), TargetWish("loopback"))


def server_only(case: Case) -> Figures:
    return answer(case, ServerOnly("server_only"), connect(case, DraftSide()))[0]


def drafted(case: Case, side: DraftSide, remote: RemoteTarget, **options: bool) -> Any:
    method = make_method(case.spec, side, Wish(case.sampling), case.eos_ids)
    return answer(case, method, remote, **options)


# ------------------------------------------------------------------------------- what is asked for

TOKEN = st.integers(0, VOCAB - 1)
_MODELS = st.builds(
    Models,
    family=st.sampled_from(["llama", "qwen2", "qwen3"]),
    seed=st.integers(0, 2),
    scale=st.sampled_from([4.0, 2.0]),
    draft=st.sampled_from(sorted(DRAFTS)),
    context=st.sampled_from([2048, SHORT_CONTEXT]),
    draft_context=st.sampled_from([2048, 2048, SHORT_CONTEXT, 20]),
)
_PROMPTS = st.builds(
    prompt_of,
    length=st.integers(1, 40),
    seed=st.integers(0, 999),
    vocab=st.sampled_from([VOCAB, 12, 3]),  # few tokens repeat themselves
)
_DRAWS = {
    "temperature": st.sampled_from([0.3, 1.0, 1.5]),
    "seed": st.integers(0, 2**64 - 1),
    "choice": st.integers(0, 3),
    "top_k": st.sampled_from([0, 0, 1, 3, 40]),
    "top_p": st.sampled_from([1.0, 1.0, 0.9, 0.5]),
    "min_p": st.sampled_from([0.0, 0.0, 0.02, 0.3]),
}
_CHANGES = {
    "repetition_penalty": st.sampled_from([1.0, 1.2, 0.8]),
    "presence_penalty": st.sampled_from([0.0, 0.7, -0.7]),
    "frequency_penalty": st.sampled_from([0.0, 0.4, -0.2]),
    "logit_bias": st.dictionaries(TOKEN, st.floats(-8, 8), max_size=3),
    "bad_words": st.lists(st.lists(TOKEN, min_size=1, max_size=3), max_size=8),
    "min_new_tokens": st.sampled_from([0, 0, 3, 12, 50]),
}
_SAMPLINGS = st.one_of(
    st.just(GREEDY),
    st.builds(Sampling, **_DRAWS),
    st.builds(Sampling, **_CHANGES),
    st.builds(Sampling, **_DRAWS, **_CHANGES),
)


def specs(methods: Sequence[str], **fields: Any) -> st.SearchStrategy[MethodSpec]:
    given_ = {name: value if isinstance(value, st.SearchStrategy) else st.just(value)
              for name, value in fields.items()}  # fmt: skip
    return st.builds(
        MethodSpec,
        method=st.sampled_from(methods),
        width=st.integers(1, 6),
        max_depth=st.integers(1, 7),
        node_budget=st.integers(1, 24),
        **given_,
    )


def cases(spec: st.SearchStrategy[MethodSpec]) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        models=_MODELS,
        spec=spec,
        prompt=_PROMPTS,
        sampling=_SAMPLINGS,
        eos_ids=st.just(frozenset()) | st.frozensets(TOKEN, max_size=10),
        stop=st.lists(st.text("abcdefghijkl", min_size=1, max_size=3), max_size=2).map(tuple),
        max_new_tokens=st.sampled_from([MOST_TOKENS] * 6 + [1, 2, 7, 13]),
        excluded=st.just(frozenset()) | st.frozensets(TOKEN, max_size=20),
    )
