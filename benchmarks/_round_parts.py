"""Timers around the pieces of a round, put on from outside and taken off again.

A piece is one function of the library. Its time is exclusive: what it spends inside another timed
piece counts for that one alone, so that all pieces of a thread add up to the time of its root. A
piece counts only inside a root (all rounds of an answer, one verification), so that prefills and
handshakes stay out. Each thread has its own stack. The library knows nothing of this; only the
benchmark's processes are touched. Knows no table and no process.
"""

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from autodraft.decoding.stopping import StopText
from autodraft.decoding.text import TextStream
from autodraft.engine import drafter, hosted, levels, remote, verifier
from autodraft.engine.rounds import Progress, Rounds
from autodraft.engine.worker import ModelWorker
from autodraft.models import candidates
from autodraft.models.kv_cache import KVCache
from autodraft.models.masks import TreeMasks
from autodraft.models.runner import ModelRunner
from autodraft.protocol.messages import Verified, Verify
from autodraft.transport import client, server
from autodraft.tree.growth import TreeGrowth

PARTS: Final = {
    "draft_forward": "draft: the model's forwards, head included",
    "top_k": "draft: candidates and their probabilities",
    "draft_tree": "draft: tree book-keeping",
    "draft_inputs": "draft: mask, positions, tensors",
    "draft_gather": "draft: cache gather",
    "codec": "serialise and deserialise, both sides",
    "link": "socket, event loop, waking the other process",
    "hand_over": "hand-over to the target's thread and back",
    "verify_forward": "target: the model's forward, head included",
    "verify_inputs": "target: tree rebuilt, mask, positions, tensors",
    "argmax": "target: arg-max over the vocabulary",
    "walk": "target: walk",
    "verify_gather": "target: cache gather",
    "stop_rules": "block cut where the answer ends, both sides",
    "detokenise": "tokens to text",
    "records": "the round's record",
    "other": "what no timer explains: the round loop",
}
"""Parts of a round in the order of a round; together they are all of it."""
FORWARDS: Final = ("draft_forward", "verify_forward")
LINK: Final = "link"
HAND_OVER: Final = "ModelWorker.run"
COST_REPEATS: Final = 20_000
COST_TRIALS: Final = 5


class Tally(NamedTuple):
    """What one piece took.

    Attributes:
        seconds: Exclusive time of all its calls.
        calls: How many were timed.
    """

    seconds: float
    calls: int


class Probe:
    """Adds up the exclusive time of pieces; off until ``enabled`` is set.

    Attributes:
        enabled: Whether timers count; to be changed between roots only.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Prepare; ``clock`` gives seconds."""
        self.enabled = False
        self.clock = clock
        self._tallies: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
        self._nested = threading.local()  # seconds in pieces of the open one; None without a root
        self._undo: list[tuple[Any, str, Any, bool]] = []

    def add(self, piece: str, seconds: float) -> None:
        """Count one call of a piece."""
        tally = self._tallies[piece]
        tally[0] += seconds
        tally[1] += 1

    def timed(
        self,
        function: Callable[..., Any],
        piece: str,
        *,
        root: bool = False,
        counts: Callable[..., bool] | None = None,
    ) -> Callable[..., Any]:
        """Return the function with a timer.

        Args:
            function: What is called.
            piece: Under which name its time is added.
            root: Whether it counts outside a root too, as one.
            counts: Tells from the result and the arguments whether a call belongs to a round.
        """
        nested, clock = self._nested, self.clock

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            outer = getattr(nested, "seconds", None)
            if not self.enabled or (outer is None and not root):
                return function(*args, **kwargs)
            nested.seconds, result = 0.0, None
            started = clock()
            try:
                result = function(*args, **kwargs)
                return result
            finally:
                spent, inside = clock() - started, nested.seconds
                nested.seconds = None if outer is None else outer + spent
                if counts is None or counts(result, *args, **kwargs):
                    self.add(piece, spent - inside)

        return call

    def timed_stream(self, function: Callable[..., Iterator[Any]], piece: str) -> Any:
        """Return a generator function as a root: from its first item asked for to its end.

        What the consumer does with an item is inside, in pieces of its own or in this one.
        """

        @functools.wraps(function)
        def stream(*args: Any, **kwargs: Any) -> Iterator[Any]:
            if not self.enabled:
                yield from function(*args, **kwargs)
                return
            self._nested.seconds = 0.0
            started = self.clock()
            try:
                yield from function(*args, **kwargs)
            finally:
                self.add(piece, self.clock() - started - self._nested.seconds)
                self._nested.seconds = None

        return stream

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Set an attribute of a class, module or object until ``unwrap``."""
        self._undo.append((owner, name, vars(owner).get(name), name in vars(owner)))
        setattr(owner, name, replacement)

    def unwrap(self) -> None:
        """Take all timers off; every owner holds again exactly what it held before."""
        while self._undo:
            owner, name, original, own = self._undo.pop()
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

    def take(self) -> dict[str, Tally]:
        """Return what every piece took so far, and begin anew."""
        taken, self._tallies = self._tallies, defaultdict(lambda: [0.0, 0])
        return {piece: Tally(seconds, int(calls)) for piece, (seconds, calls) in taken.items()}


class Piece(NamedTuple):
    """A function that gets a timer.

    Attributes:
        owner: Class or module that holds it.
        name: Its attribute there.
        part: What part of a round it belongs to.
        options: Of ``Probe.timed``.
    """

    owner: Any
    name: str
    part: str
    options: Mapping[str, Any] = {}

    @property
    def label(self) -> str:
        """What it is called in tables, for example ``TreeGrowth.best``."""
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.name.strip('_')}"


_ROOT: Final = {"root": True}
_ASKED: Final = {"root": True, "counts": lambda message, *_: isinstance(message, Verify)}
_ANSWERED: Final = {"root": True, "counts": lambda _, message: isinstance(message, Verified)}

ROUNDS: Final = Piece(Rounds, "decode", "other")
DRAFT_PIECES: Final = (
    Piece(drafter, "top_candidates", "top_k"),
    Piece(drafter.Drafter, "draft", "draft_tree"),
    Piece(drafter.Drafter, "commit", "draft_tree"),
    Piece(levels.Levels, "__init__", "draft_tree"),
    Piece(levels.Levels, "add", "draft_tree"),
    Piece(levels.Levels, "slots", "draft_tree"),
    Piece(TreeGrowth, "__init__", "draft_tree"),
    Piece(TreeGrowth, "frontier", "draft_tree"),
    Piece(TreeGrowth, "add_level", "draft_tree"),
    Piece(TreeGrowth, "graft", "draft_tree"),
    Piece(TreeGrowth, "best", "draft_tree"),
    Piece(drafter, "node_positions", "draft_inputs"),
    Piece(TreeMasks, "additive", "draft_inputs"),
    Piece(ModelRunner, "forward", "draft_inputs"),
    Piece(ModelRunner, "prefill", "draft_inputs"),
    Piece(KVCache, "keep", "draft_gather"),
    Piece(KVCache, "trim", "draft_gather"),
    Piece(remote, "pack_nodes", "codec"),
    Piece(client, "encode", "codec"),
    Piece(client, "decode_server", "codec"),
    Piece(remote, "unpack_path", "codec"),
    Piece(client.Link, "request", LINK),
    Piece(Progress, "commit", "stop_rules"),
    Piece(TextStream, "push", "detokenise"),
    Piece(StopText, "push", "detokenise"),
    Piece(Rounds, "_record", "records"),
)
TARGET_PIECES: Final = (
    Piece(server, "decode_client", "codec", _ASKED),
    Piece(hosted, "unpack_nodes", "codec", _ROOT),
    Piece(verifier.Verifier, "verify", "verify_inputs", _ROOT),
    Piece(verifier, "received_tree", "verify_inputs"),
    Piece(verifier, "node_positions", "verify_inputs"),
    Piece(verifier, "ancestor_mask", "verify_inputs"),
    Piece(TreeMasks, "additive", "verify_inputs"),
    Piece(ModelRunner, "forward", "verify_inputs"),
    Piece(candidates, "best_tokens", "argmax"),
    Piece(verifier, "walk", "walk"),
    Piece(KVCache, "keep", "verify_gather"),
    Piece(verifier.Verifier, "_commit", "stop_rules"),
    Piece(hosted, "pack_path", "codec", _ROOT),
    Piece(server, "encode", "codec", _ANSWERED),
)
MODEL: Final = "model.forward"


def _part_of(pieces: Iterable[Piece], forward: str) -> dict[str, str]:
    return {MODEL: forward} | {piece.label: piece.part for piece in pieces}


DRAFT_PARTS: Final = _part_of((ROUNDS, *DRAFT_PIECES), "draft_forward")
TARGET_PARTS: Final = _part_of(TARGET_PIECES, "verify_forward") | {HAND_OVER: "hand_over"}


def watch_runner(probe: Probe, runner: ModelRunner) -> None:
    """Time the stock model's own forward, apart from what prepares it."""
    model = runner._model
    probe.replace(model, "forward", probe.timed(model.forward, MODEL))


def _watch(probe: Probe, pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        original = getattr(piece.owner, piece.name)
        timed = probe.timed(original, piece.label, **piece.options)
        probe.replace(piece.owner, piece.name, timed)


def watch_draft(probe: Probe) -> None:
    """Time the user's side; the root is the stream of an answer's rounds."""
    _watch(probe, DRAFT_PIECES)
    probe.replace(Rounds, ROUNDS.name, probe.timed_stream(Rounds.decode, ROUNDS.label))


def watch_target(probe: Probe) -> None:
    """Time the target's side; roots are a verification and the codec around it."""
    _watch(probe, TARGET_PIECES)
    original = ModelWorker.run

    @functools.wraps(original)
    async def run(worker: ModelWorker, function: Callable[..., Any], *args: Any) -> Any:
        started = probe.clock()
        timed = await original(worker, function, *args)
        if probe.enabled and function.__name__ == "verify":
            probe.add(HAND_OVER, probe.clock() - started - timed.run_s)
        return timed

    probe.replace(ModelWorker, "run", run)


def stack(draft: Mapping[str, Tally], target: Mapping[str, Tally]) -> dict[str, float]:
    """Return the seconds of all parts of the same rounds: their sum is the rounds' time.

    Args:
        draft: What the user's pieces took, the root ``Rounds.decode`` among them.
        target: What the target's took meanwhile. The user waited for them, so they come out of
            that wait; what is left of it is the link.
    """
    parts = dict.fromkeys(PARTS, 0.0)
    for piece, (seconds, _) in draft.items():
        parts[DRAFT_PARTS[piece]] += seconds
    for piece, (seconds, _) in target.items():
        parts[TARGET_PARTS[piece]] += seconds
        parts[LINK] -= seconds
    return parts


def overhead_share(parts: Mapping[str, float], *, with_link: bool = False) -> float:
    """Return the share of the rounds' time that is neither a forward nor, by default, the link."""
    left_out = FORWARDS if with_link else (*FORWARDS, LINK)
    spent = sum(seconds for part, seconds in parts.items() if part not in left_out)
    return spent / sum(parts.values())


def timer_cost_s(repeats: int = COST_REPEATS) -> float:
    """Return the seconds that one timer adds to its call: the least of some trials."""
    probe = Probe()
    probe.enabled = True

    def nothing() -> None:
        pass

    def spent(function: Callable[[], None]) -> float:
        started = time.perf_counter()
        for _ in range(repeats):
            function()
        return time.perf_counter() - started

    timed = probe.timed(nothing, "nothing")
    inside_a_root = probe.timed(lambda: spent(timed) - spent(nothing), "root", root=True)
    return max(0.0, min(inside_a_root() for _ in range(COST_TRIALS)) / repeats)
