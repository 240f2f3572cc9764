"""Is the output of trees the output of plain decoding, token for token, in float32, on this device?

Small random models answer random prompts: one token at a time, and in the library's own rounds with
drafts that are wrong, half right, or another model's. Where two answers first differ, the gap of
the two best logits there decides: below ``TIE`` it is floating point, above it a fault
(docs of losslessness: DESIGN §4). The judge is the stock class, in one causal forward over prompt
and answer. Takes no times.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import torch

from autodraft.engine.drafter import Draft, Drafter, DraftSource
from autodraft.models.runner import ModelRunner
from autodraft.policy import ChainPolicy, FixedTreePolicy, Policy, TreeLimits
from autodraft.tree.draft_tree import DraftTree, IntArray, node_depths
from gpu_checks.budget import Part
from gpu_checks.decoding import decode_in_rounds, decode_plainly
from gpu_checks.models import random_model
from gpu_checks.shapes import Shape

TIE: Final = 1e-4
"""Logits nearer than this may change places with the order of computing."""
CHAIN: Final = ChainPolicy(TreeLimits(1, 6, 6))
TREE: Final = FixedTreePolicy(TreeLimits(4, 5, 24))
HALF_RIGHT: Final = 0.7
"""Chance of each token of a half-right draft; a path of five is right in one case of six."""
KINDS: Final = (
    "stock",
    "chain_wrong",
    "chain_half_right",
    "tree_wrong",
    "tree_half_right",
    "cut",
)
"""What plain decoding is compared with: the stock class, and rounds with these drafts."""
_SHOWN: Final = 20


@dataclass(frozen=True)
class Plan:
    """What is decoded.

    Attributes:
        contexts: Lengths of the prompts.
        tokens: Length of each answer.
        seeds: Seeds of prompts and drafts.
    """

    contexts: tuple[int, ...]
    tokens: int
    seeds: tuple[int, ...]

    @property
    def cases(self) -> Iterator[tuple[int, int]]:
        """Seeds and contexts, a seed after the other."""
        return ((seed, context) for seed in self.seeds for context in self.contexts)


PLAN: Final = Plan((17, 200, 1000), 48, (0, 1, 2))
COMPILED_PLAN: Final = Plan((17, 200), 32, (0,))
TINY_PLAN: Final = Plan((5, 60), 24, (0,))


@dataclass(frozen=True)
class Difference:
    """The first token at which two answers differ.

    Attributes:
        seed: Seed of the prompt.
        context: Tokens of the prompt.
        token: Number of the token in the answer, from 0.
        gap: Distance of the two best logits there, by the stock class.
    """

    seed: int
    context: int
    token: int
    gap: float


@dataclass
class Comparison:
    """Answers of one kind beside plain decoding.

    Attributes:
        family: transformers' model type.
        mode: ``eager`` or ``compiled``.
        draft: What was drafted; ``stock`` compares plain decoding with the stock class.
        answers: Answers compared.
        tokens: Tokens compared: up to the first difference of each answer.
        accepted: Drafted tokens that were kept.
        ties: Answers that parted at a tie.
        faults: Where the others parted.
    """

    family: str
    mode: str
    draft: str
    answers: int = 0
    tokens: int = 0
    accepted: int = 0
    ties: int = 0
    faults: list[Difference] = field(default_factory=list)

    def compare(
        self,
        plain: Sequence[int],
        other: Sequence[int],
        gaps: Sequence[float],
        seed: int,
        context: int,
    ) -> None:
        """Compare one answer; ``gaps`` are the distances of the two best logits at its tokens."""
        self.answers += 1
        pairs = zip(plain, other, strict=True)
        where = next((place for place, (ours, its) in enumerate(pairs) if ours != its), None)
        self.tokens += len(plain) if where is None else where + 1
        if where is None:
            return
        if gaps[where] < TIE:
            self.ties += 1
        else:
            self.faults.append(Difference(seed, context, where, gaps[where]))

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, for JSON; of many faults the first ones."""
        found = asdict(self)
        return {**found, "num_faults": len(self.faults), "faults": found["faults"][:_SHOWN]}


class Scripted:
    """Drafts that are right as often as they should be: whoever made them knows the answer."""

    def __init__(self, known: Sequence[int], vocab: int, right: float, seed: int) -> None:
        """Take what is to be said.

        Args:
            known: Prompt and answer, token ids.
            vocab: Token ids there are.
            right: Chance of each token on the one path that can be right.
            seed: Seed of the wrong tokens and of the shapes.
        """
        self._known = list(known)
        self._vocab = vocab
        self._right = right
        self._rng = np.random.default_rng(seed)

    def start(
        self, prompt: Sequence[int], max_new_tokens: int, limits: TreeLimits, *, ahead: bool = True
    ) -> None:
        """Nothing is to be prepared."""

    def draft(
        self, context: Sequence[int], policy: Policy, max_depth: int, node_budget: int
    ) -> Draft:
        """Propose a path of full depth, and the other nodes hung anywhere below the root."""
        limits = policy.limits
        depth = min(limits.max_depth, max_depth, node_budget)
        if depth < 1:
            return Draft.whole(_tree([context[-1]], [-1]), 0)
        truth = self._known[len(context) : len(context) + depth]
        path = [self._guess(token) for token in truth]
        path += self._rng.integers(0, self._vocab, depth - len(path)).tolist()
        parents = list(range(-1, depth))
        others = min(node_budget, limits.node_budget) - depth if limits.width > 1 else 0
        depths = list(range(depth + 1))
        for _ in range(others):
            above = int(self._rng.choice([n for n, deep in enumerate(depths) if deep < depth]))
            parents.append(above)
            depths.append(depths[above] + 1)
        # No other node carries a token of the path or of another: siblings must differ.
        wrong = np.setdiff1d(np.arange(self._vocab), path)
        tokens = [context[-1], *path, *self._rng.choice(wrong, others, replace=False).tolist()]
        return Draft.whole(_tree(tokens, parents), limits.width)

    def _guess(self, token: int) -> int:
        return token if self._rng.random() < self._right else int(self._rng.integers(self._vocab))

    def commit(self, path: IntArray) -> None:
        """Nothing is to be remembered."""

    def finish(self) -> None:
        """Nothing is held."""


def _tree(tokens: Sequence[int], parents: Sequence[int]) -> DraftTree:
    above = np.array(parents, dtype=np.int64)
    known = np.array(tokens, dtype=np.int64)
    return DraftTree(known, above, node_depths(above), np.zeros(len(known)))


class Prover:
    """Compares one small model with itself."""

    def __init__(self, shape: Shape, device: torch.device, seed: int, compile: bool) -> None:
        """Build the model, a draft that is its first layers, and the stock judge."""
        make = (device, torch.float32, seed)
        self._stock = random_model(shape, *make)
        self._runner = ModelRunner(random_model(shape, *make), shape.name, compile=compile)
        self._draft = ModelRunner(random_model(_cut(shape), *make), f"{shape.name}, cut")
        self._shape = shape
        self._mode = "compiled" if compile else "eager"

    def prove(self, plan: Plan, part: Part, comparisons: list[Comparison]) -> None:
        """Compare all kinds of drafts and add them; drop the cases for which time runs out."""
        found = {kind: Comparison(self._shape.family, self._mode, kind) for kind in KINDS}
        comparisons += found.values()
        for number, (seed, context) in enumerate(plan.cases):
            if number and part.left_s <= 0:  # one case at least: each family is to be seen
                name = f"losslessness of {self._shape.name}, {self._mode}"
                part.drop(f"{name}: seed {seed} from context {context} on")
                break
            self._case(found, plan.tokens, seed, context)

    def _case(self, found: dict[str, Comparison], tokens: int, seed: int, context: int) -> None:
        rng = np.random.default_rng((seed, context))
        prompt: list[int] = rng.integers(0, self._shape.vocab, context).tolist()
        plain = decode_plainly(self._runner, prompt, tokens)
        best, gaps = self._judge(prompt, plain)
        found["stock"].compare(plain, best, gaps, seed, context)
        for kind, (source, policy) in self._drafts([*prompt, *plain], seed).items():
            answer = decode_in_rounds(self._runner, source, policy, prompt, tokens)
            found[kind].accepted += sum(round_.accepted_length for round_ in answer.rounds)
            found[kind].compare(plain, answer.tokens, gaps, seed, context)

    def _drafts(self, known: list[int], seed: int) -> dict[str, tuple[DraftSource, Policy]]:
        def scripted(right: float) -> Scripted:
            return Scripted(known, self._shape.vocab, right, seed)

        return {
            "chain_wrong": (scripted(0.0), CHAIN),
            "chain_half_right": (scripted(HALF_RIGHT), CHAIN),
            "tree_wrong": (scripted(0.0), TREE),
            "tree_half_right": (scripted(HALF_RIGHT), TREE),
            "cut": (Drafter(self._draft), TREE),
        }

    @torch.inference_mode()
    def _judge(self, prompt: list[int], answer: list[int]) -> tuple[list[int], list[float]]:
        """Return the stock class's best token at each place of the answer, and the gap there."""
        ids = torch.tensor([prompt + answer[:-1]], device=self._runner.device)
        logits = self._stock(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]
        best = logits.topk(2, dim=-1)
        gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
        return best.indices[:, 0].tolist(), gaps


def _cut(shape: Shape) -> Shape:
    fields = asdict(shape) | {"name": f"{shape.name}, cut", "layers": shape.layers - 1}
    return Shape(**fields)


def verdict(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return all figures and whether losslessness held; nothing compared has not held."""
    compared = sum(comparison.answers for comparison in comparisons)
    faults = sum(len(comparison.faults) for comparison in comparisons)
    return {
        "held": compared > 0 and faults == 0,
        "precision": "float32",
        "allowed_gap": TIE,
        "answers": compared,
        "tokens": sum(comparison.tokens for comparison in comparisons),
        "ties": sum(comparison.ties for comparison in comparisons),
        "faults": faults,
        "comparisons": [comparison.as_dict() for comparison in comparisons],
    }
