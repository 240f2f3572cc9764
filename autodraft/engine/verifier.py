"""The target's side of one request: its context, its cache, and one forward per round.

Synchronous and alone with its model; queues, sockets and bills are the service's business. Every
token is the one that the judge puts after its context, whether it was drafted or not.
"""

import numpy as np
import numpy.typing as npt
import torch

from autodraft.decoding.stopping import Decode, Ending, FinishReason, StopRules
from autodraft.decoding.verification import UNDECIDED, walk
from autodraft.decoding.wish import PLAIN, Wish
from autodraft.engine.judge import Judge
from autodraft.engine.kept import Kept
from autodraft.errors import ProtocolError
from autodraft.models.kv_cache import KVCache
from autodraft.models.memory import give_back_memory
from autodraft.models.runner import ModelRunner
from autodraft.records import TokenScore
from autodraft.tree.attention import ancestor_mask, node_positions
from autodraft.tree.draft_tree import DraftTree, received_tree

IntArray = npt.NDArray[np.int64]


class Verifier:
    """Verifies trees, or decodes token by token, behind one prompt.

    The cache always holds the whole context but its last token, the root of the next round.

    Attributes:
        forwards: Forwards of the target so far, prefill included.
        reused: Tokens of the prompt that its cache held already, known from the prefill on.
    """

    def __init__(
        self,
        runner: ModelRunner,
        prompt: IntArray,
        rules: StopRules,
        node_budget: int,
        decode: Decode | None = None,
        wish: Wish = PLAIN,
        kept: Kept | None = None,
    ) -> None:
        """Prepare a request.

        Args:
            runner: The target model.
            prompt: Token ids of the prompt, [T].
            rules: When the answer ends.
            node_budget: Most nodes of a round.
            decode: Turns token ids into text, where the rules have stop strings.
            wish: How tokens are chosen.
            kept: What an earlier answer left, and where this one leaves its cache; None reuses
                nothing.
        """
        self._runner = runner
        self._judge = Judge(runner, prompt.tolist(), rules, wish)
        self._ending = Ending(rules, decode)
        self._context: list[int] = prompt.tolist()
        self._kept = kept
        # A round writes its root and its nodes behind the context before the path is gathered.
        self._capacity = len(prompt) + rules.max_new_tokens + node_budget + 1
        self._taken: KVCache | None = None
        self.reused = 0
        self.forwards = 0

    @property
    def _cache(self) -> KVCache:
        assert self._taken is not None, "prefill() comes first"
        return self._taken

    @property
    def rules(self) -> StopRules:
        """When the answer ends."""
        return self._ending.rules

    @property
    def emitted(self) -> int:
        """Tokens of the answer so far."""
        return self._ending.emitted

    @property
    def finish(self) -> FinishReason | None:
        """Why the answer has ended; None while it goes on."""
        return self._ending.finish

    @property
    def redecided(self) -> int:
        """Tokens so far that were decided again, by a forward of their own."""
        return self._judge.redecided

    def take_scores(self) -> list[TokenScore]:
        """Return the scores of the tokens chosen since the last call, where they are wanted."""
        return self._judge.take_scores()

    def release(self) -> None:
        """Give the cache back, or leave it to the next; nothing comes after."""
        cache, self._taken = self._taken, None
        if cache is None:  # given up before its prefill
            return
        if self._kept is not None and cache.length:
            self._kept.keep(self._runner, cache, self._context[: cache.length])
        else:
            self._runner.release(cache)
        del cache
        give_back_memory(collect=False)

    def prefill(self) -> int:
        """Forward what is new of the prompt and return the first token of the answer.

        Its cache is taken now, and not before: another answer's may be given back until then.
        """
        store = self._kept or Kept()
        self._taken, self.reused = store.take(self._runner, self._context, self._capacity)
        rest = self._context[self.reused :]
        token = self._judge.decide(self._runner.prefill(self._cache, rest))
        self._commit([token])
        return token

    def step(self) -> int:
        """Decode one token."""
        token = self._judge.decide(self._forward_one(self._context[-1]))
        self._commit([token])
        return token

    def verify(
        self, tokens: IntArray, parents: IntArray, max_depth: int | None = None
    ) -> tuple[IntArray, int]:
        """Verify one round's tree and commit what the target agrees with.

        Args:
            tokens: Token of each node, root excluded, [N].
            parents: Parent of each node, the root being 0, [N].
            max_depth: Deepest tree allowed; None leaves it to the model's context.

        Returns:
            The accepted nodes from the root down, and the bonus token.

        Raises:
            ProtocolError: If the nodes form no tree or name tokens the model does not have.
        """
        if len(tokens) and int(tokens.max()) >= self._runner.vocab_size:
            raise ProtocolError(
                f"Token id {int(tokens.max())} is not one of the target's "
                f"{self._runner.vocab_size}. Draft and target need the same tokenizer."
            )
        try:
            tree = received_tree(self._context[-1], tokens, parents)
        except ValueError as error:
            raise ProtocolError(f"Malformed draft tree: {error}.") from error
        base = self._cache.length
        room = self._runner.max_context - base - 1
        allowed = room if max_depth is None else min(room, max_depth)
        if tree.depth > allowed:
            raise ProtocolError(
                f"A draft tree of depth {tree.depth} behind {base + 1} tokens; depth {allowed} is "
                "the most that this target takes there."
            )
        logits = self._runner.forward(
            self._cache,
            tree.tokens,
            node_positions(tree.depths, base),
            ancestor_mask(tree.parents),
        )
        choices = self._judge.choices(logits, tree.tokens, tree.parents)
        path, bonus = walk(tree.tokens, tree.parents, choices)
        if bonus == UNDECIDED:
            bonus = self._decide_again(tree, base, path)
        else:
            self._cache.keep(base, np.concatenate(([base], base + path)))
        self._commit([*tree.tokens[path].tolist(), bonus])
        return path, bonus

    def _decide_again(self, tree: DraftTree, base: int, path: IntArray) -> int:
        """Return the token behind an accepted path by a forward of the path's last node alone."""
        nodes = np.concatenate(([0], path))
        self._cache.keep(base, base + nodes[:-1])
        logits = self._forward_one(int(tree.tokens[nodes[-1]]))
        self.forwards += 1
        return self._judge.decide(logits, tree.tokens[path].tolist())

    def _forward_one(self, token: int) -> torch.Tensor:
        """Forward the token behind the cache, as plain decoding does; return its logits, [1, V]."""
        position = np.array([self._cache.length])
        visible = np.ones((1, 1), dtype=np.bool_)
        return self._runner.forward(self._cache, np.array([token]), position, visible)

    def _commit(self, block: list[int]) -> None:
        self._judge.commit(block)
        self._ending.cut(block)
        self.forwards += 1
        self._context += block
