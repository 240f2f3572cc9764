"""Asks the turns of the identity benchmark by every method, and goes on where it stood.

A client is draft model and link, with what the controller has learned. Nothing is reused from one
answer to the next: an answer does not depend on those before it. Knows no figure and no table.
"""

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import _common as common
import _live_target as live
from _identity_answers import Answer, Answers, Key
from _identity_padded import PADDED, junk_tokens, padded_method
from _identity_turns import Turn, Way, asked_in, ways_of

from autodraft.config import ADAPTIVE, ExperimentConfig, MethodSpec
from autodraft.decoding.sampling import GREEDY, Sampling
from autodraft.decoding.stopping import StopRules, answer_limit
from autodraft.decoding.wish import Wish
from autodraft.engine.methods import make_method
from autodraft.engine.session import Request
from autodraft.engine.user import UserSide
from autodraft.models.embedded import EMBEDDED_TARGET
from autodraft.protocol.codec import pack_tokens

REFERENCE: Final = "server_only"
AGAIN: Final = "server_only_again"
STATICS: Final = ("chain", "fixed_tree", "opt_tree", "lookup")
SENSITIVITIES: Final = (0.0, 0.5, 1.0)
SPECULATIVE: Final = (*STATICS, *(f"{ADAPTIVE}_cs{cs:g}" for cs in SENSITIVITIES))
TEMPERATURE: Final = 0.8
TOP_P: Final = 0.95


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        turns: Turns of each benchmark.
        tokens: Most tokens of an answer.
        dtypes: Of both models, one after the other.
        methods: Labels of the speculative methods.
        seed: Draws the questions, and with a turn's number its tokens.
    """

    turns: int
    tokens: int
    dtypes: tuple[str, ...]
    methods: tuple[str, ...]
    seed: int

    def labels(self, way: Way) -> tuple[str, ...]:
        """Return everything that answers in one way; the measure of the others comes first."""
        return (REFERENCE, AGAIN, *(() if way.strict else (PADDED,)), *self.methods)

    def sampling(self, way: Way, turn: Turn) -> Sampling:
        """Return how the tokens of an answer are chosen."""
        if not way.sampled:
            return GREEDY
        return Sampling(temperature=TEMPERATURE, top_p=TOP_P, seed=self.seed + turn.number)


def pair_config(dtype: str, port: int) -> ExperimentConfig:
    """Return the settings of a client with the embedded pair."""
    return live.pair_config(dtype, (REFERENCE, *STATICS, ADAPTIVE), port)


def spec_of(config: ExperimentConfig, label: str) -> MethodSpec:
    """Return the method of a label, at its default shape; the controls are server-only's."""
    if label in (REFERENCE, AGAIN, PADDED):
        return config.method(REFERENCE)
    if label in STATICS:
        return config.method(label)
    return config.adaptive(float(label.removeprefix(f"{ADAPTIVE}_cs")))


class Client:
    """The user's side of the pair in one dtype."""

    def __init__(self, config: ExperimentConfig, settings: Settings) -> None:
        """Prepare; nothing is loaded or connected yet."""
        self._config = config
        self._settings = settings
        self._user = UserSide(config, live.TOKEN, None)

    def close(self) -> None:
        """Close the link."""
        self._user.close()

    def encode(self, messages: Sequence[str], answers: Sequence[list[int]]) -> list[int]:
        """Return a chat as token ids, in the chat template.

        Args:
            messages: The user's.
            answers: Token ids of the answers to all but the last.
        """
        self._user.connect()
        tokenizer = self._user.tokenizer
        chat = [{"role": "user", "content": messages[0]}]
        for ids, message in zip(answers, messages[1:], strict=True):
            chat.append({"role": "assistant", "content": tokenizer.decode(ids)})
            chat.append({"role": "user", "content": message})
        return tokenizer.encode_chat(chat)

    def answer(self, turn: Turn, prompt: Sequence[int], way: Way, key: Key) -> Answer:
        """Answer a prompt by the method that ``key`` names.

        Raises:
            LinkError: If the link or the server fails.
            CannotMeasure: If the prompt leaves no room for an answer.
        """
        spec = spec_of(self._config, key.method)
        target, side = self._user.prepare_for(spec), self._user.side
        welcome = target.welcome
        limit = answer_limit(key.tokens, len(prompt), welcome.max_context)
        if limit < 1:
            raise common.CannotMeasure(
                f"{turn.name}: its prompt of {len(prompt)} tokens fills the context of "
                f"{welcome.max_context}. Draw other questions with --seed."
            )
        rules = StopRules(frozenset(welcome.eos_ids), limit)
        # Only the measure tells how sure it was; the others answer as they do for any user.
        scores = 0 if key.method == REFERENCE else None
        wish = Wish(self._settings.sampling(way, turn), way.exact, scores)
        if key.method == PADDED:
            said = side.runner.output_ids if side.runner is not None else None
            known = () if said is None else said.tolist()
            method = padded_method(junk_tokens(welcome.vocab_size, known, rules.eos_ids))
        else:
            method = make_method(spec, side, wish, rules.eos_ids)
        request = Request(target, method, prompt, rules, self._user.meters(), wish=wish)
        for _ in request:
            pass
        record = request.record
        return Answer(
            **key._asdict(),
            output_ids=record.output_ids,
            gaps=None if record.output_gaps is None else list(record.output_gaps),
            redecided=record.redecided_tokens,
            accepted=record.accepted_tokens,
        )


class Runner:
    """Asks in one dtype what is not answered yet."""

    def __init__(self, settings: Settings, turns: Sequence[Turn], answers: Answers) -> None:
        """Take what is run, the turns, and the answers that are there."""
        self._settings = settings
        self._turns = turns
        self._answers = answers

    def run(self, dtype: str, client: Client) -> dict[Way, list[dict[str, Answer]]]:
        """Return the answers to each turn by label, for each way to ask.

        Raises:
            AutodraftError: If models, link or server fail.
            CannotMeasure: If a prompt leaves no room for an answer.
        """
        found: dict[Way, list[dict[str, Answer]]] = {way: [] for way in ways_of(dtype)}
        plainest = next(iter(found))
        said: dict[str, list[int]] = {}
        for number, turn in enumerate(self._turns, start=1):
            print(f"{dtype}, turn {number} of {len(self._turns)}: {turn.name} …", file=sys.stderr)
            prompt = client.encode(turn.messages, [said[name] for name in turn.earlier])
            for way in found:
                if turn in asked_in(way, self._turns):
                    found[way].append(self._ask(client, turn, prompt, way))
            said[turn.name] = found[plainest][-1][REFERENCE].output_ids
        return found

    def _ask(
        self, client: Client, turn: Turn, prompt: Sequence[int], way: Way
    ) -> dict[str, Answer]:
        """Return everyone's answer to a turn."""
        settings, found = self._settings, {}
        seed = settings.sampling(way, turn).seed if way.sampled else None
        prompt_hash = hashlib.sha256(pack_tokens(prompt)).hexdigest()[:16]
        for label in settings.labels(way):
            key = Key(way.dtype, way.exact, seed, turn.name, label, settings.tokens, prompt_hash)
            answer = self._answers.get(key)
            if answer is None:
                answer = client.answer(turn, prompt, way, key)
                self._answers.add(answer)
            found[label] = answer
        return found


@contextlib.contextmanager
def embedded_client(dtype: str, settings: Settings) -> Iterator[Client]:
    """Run a target server of its own and a client of it meanwhile.

    Raises:
        CannotMeasure: If the server does not come up.
    """
    options = ("--base-model-path", EMBEDDED_TARGET, "--dtype", dtype)
    with live.live_target(*options) as target:
        client = Client(pair_config(dtype, target.port), settings)
        try:
            yield client
        finally:
            client.close()
