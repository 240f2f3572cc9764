"""The target's side of one request: its context, its cache, and one forward per round.

Synchronous and alone with its model; queues, sockets and bills are the service's business. Greedy:
every token is the arg-max after its context, whether it was drafted or not.
"""

import numpy as np
import numpy.typing as npt

from autodraft.decoding.stopping import Decode, Ending, FinishReason, StopRules
from autodraft.decoding.verification import walk
from autodraft.errors import ProtocolError
from autodraft.models.candidates import GreedyChoices, best_tokens
from autodraft.models.memory import give_back_memory
from autodraft.models.runner import ModelRunner
from autodraft.tree.attention import ancestor_mask, node_positions
from autodraft.tree.draft_tree import received_tree

IntArray = npt.NDArray[np.int64]


class Verifier:
    """Verifies trees, or decodes token by token, behind one prompt.

    The cache always holds the whole context but its last token, the root of the next round.

    Attributes:
        forwards: Forwards of the target so far, prefill included.
    """

    def __init__(
        self,
        runner: ModelRunner,
        prompt: IntArray,
        rules: StopRules,
        node_budget: int,
        decode: Decode | None = None,
    ) -> None:
        """Prepare a request.

        Args:
            runner: The target model.
            prompt: Token ids of the prompt, [T].
            rules: When the answer ends.
            node_budget: Most nodes of a round.
            decode: Turns token ids into text, where the rules have stop strings.
        """
        self._runner = runner
        self._ending = Ending(rules, decode)
        self._prompt = prompt
        # A round writes its root and its nodes behind the context before the path is gathered.
        capacity = len(prompt) + rules.max_new_tokens + node_budget + 1
        self._cache = runner.new_cache(capacity)
        self._root = -1
        self.forwards = 0

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

    def release(self) -> None:
        """Give the cache back; nothing comes after."""
        self._runner.release(self._cache)
        del self._cache
        give_back_memory(collect=False)

    def prefill(self) -> int:
        """Forward the prompt and return the first token of the answer."""
        logits = self._runner.prefill(self._cache, self._prompt)
        token = int(best_tokens(logits)[0])
        self._commit([token])
        return token

    def step(self) -> int:
        """Decode one token."""
        position = np.array([self._cache.length])
        logits = self._runner.forward(
            self._cache, np.array([self._root]), position, np.ones((1, 1), dtype=np.bool_)
        )
        token = int(best_tokens(logits)[0])
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
            tree = received_tree(self._root, tokens, parents)
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
        path, bonus = walk(tree.tokens, tree.parents, GreedyChoices(logits))
        self._cache.keep(base, np.concatenate(([base], base + path)))
        self._commit([*tree.tokens[path].tolist(), bonus])
        return path, bonus

    def _commit(self, block: list[int]) -> None:
        self._ending.cut(block)
        self.forwards += 1
        self._root = block[-1]
