"""What is measured of every round and every request.

Records hold quantities only: no prices, no ratios, no labels of an experiment. Every number in a
table is computed from them afterwards. A quantity that was not measured is ``None``, never 0.
Durations come from ``time.perf_counter()`` of one host: the client's, except ``queue_s`` and
``verify_s`` (and the ``target_*`` fields), which the server measured with its own clock.
"""

from typing import Final

import msgspec

SCHEMA_VERSION: Final = 5
RELIABILITY_BINS: Final = 10
"""Bins of equal width that predicted probabilities are counted in, from 0 to 1."""


class TokenScore(msgspec.Struct, frozen=True):
    """How surely the target chose a token.

    Attributes:
        gap: Distance of the second best token, in logits, noise and penalties included; infinite
            where no other was left.
        logprob: Natural log of its probability by the model's own logits, temperature 1, nothing
            left out.
        top: The likeliest token ids in its place and their log-probabilities, likeliest first; as
            many as were asked for.
    """

    gap: float
    logprob: float
    top: list[tuple[int, float]] = []


class RoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One speculative round: draft, send, verify, commit; exactly one target forward.

    Attributes:
        round: Number of the round in its request, from 1. Prefill is not a round.
        context_tokens: Committed tokens (prompt and output) when the round began.
        width: Most frontier nodes expanded in one level; 0 where the draft model expanded none.
        depth: Depth of the deepest node sent.
        drafted_nodes: Nodes proposed, sent or not.
        num_nodes: Nodes sent to the target, root excluded.
        accepted_length: Drafted tokens kept (0 … depth), before the cut at EOS or a limit.
        emitted_tokens: Tokens added to the output, bonus token included, after that cut.
        draft_s: Time spent drafting before the tree was sent, where the method's placement puts it.
        wait_s: Time from handing the tree to the link until the reply was there.
        queue_s: Part of ``wait_s`` that the request waited for the target model.
        verify_s: Part of ``wait_s`` that the target's forward and walk took.
        round_s: The whole round at the client.
        uplink_bytes: WebSocket payload sent.
        downlink_bytes: WebSocket payload received.
        draft_j: Energy of the user's device in this round, waiting included.
        target_j: Energy of the target in this round, waiting included.
        predicted_s: What the round was expected to take when its tree was sent; ``None`` for
            methods that do not predict.
        predicted_tokens: Tokens that were expected of it, bonus token included.
        ahead_s: Part of ``wait_s`` that was spent drafting ahead.
        ahead_nodes: Nodes forwarded then.
        ahead_hit: Whether this round began from what the one before had drafted ahead; ``None``
            where that was nothing.
        saved_s: Time of drafting that this round was spared, by the draft's latency table.
        wasted_s: Part of ``ahead_s`` that no round has used: its share by nodes.
    """

    round: int
    context_tokens: int
    width: int
    depth: int
    drafted_nodes: int
    num_nodes: int
    accepted_length: int
    emitted_tokens: int
    draft_s: float
    wait_s: float
    queue_s: float
    verify_s: float
    round_s: float
    uplink_bytes: int
    downlink_bytes: int
    draft_j: float | None = None
    target_j: float | None = None
    predicted_s: float | None = None
    predicted_tokens: float | None = None
    ahead_s: float = 0.0
    ahead_nodes: int = 0
    ahead_hit: bool | None = None
    saved_s: float = 0.0
    wasted_s: float = 0.0


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request: a prompt and the answer to it.

    Attributes:
        method: Method id, with its placement suffix where it has one.
        prompt_tokens: Tokens of the prompt, chat template included.
        output_tokens: Tokens of the answer; an EOS that ended it counts, and so do the tokens of a
            stop string that did.
        finish_reason: ``stop`` (an EOS or a stop string), ``length`` (token or context limit) or
            ``cancelled`` (by the user).
        ttft_s: Submit to first token, at the client.
        total_s: Submit to last token, at the client.
        rounds: Speculative rounds; every token that the server decodes alone is one of its own.
        round_tokens: Tokens emitted by those rounds, so that MAT is ``round_tokens / rounds``.
        drafted_nodes: Nodes proposed, sent or not.
        sent_nodes: Nodes sent to the target.
        accepted_tokens: Drafted tokens kept.
        target_forwards: Forwards of the target model, prefill included.
        draft_s: Time spent drafting, prefill included; ``None`` where the user does not draft.
        server_draft_s: The same on the billed machine, a part of ``target_busy_s``; ``None`` where
            nothing is drafted there.
        target_busy_s: Model compute on the billed machine: prefill, verification, decoding, and
            drafting for a co-located method.
        target_held_s: Wall time the server held the session, from open to close.
        queue_s: Time the request waited for the target model.
        uplink_bytes: WebSocket payload sent, open and close included.
        downlink_bytes: WebSocket payload received.
        draft_j: Energy of the user's device, waiting included; 0 for a method in which it takes no
            part.
        draft_net_j: The same less what the device would have drawn idle in that time.
        target_j: Energy of the target over the time it held the session, waiting included.
        target_net_j: The same less what it would have drawn idle in that time.
        draft_energy_method: How the joules of the user's device were found: ``nvml``,
            ``nvml_power``, ``rapl`` or ``modelled``.
        target_energy_method: The same of the target's machine.
        output_ids: The answer's token ids.
        handed_over_tokens: Tokens that the server decoded alone because speculation did not pay;
            ``None`` for methods that never hand over.
        draft_reliability: For each bin of the draft's own probability of a candidate whose parent
            was accepted: candidates, sum of their probabilities, candidates that were the target's
            choice. ``None`` for methods that do not predict.
        reliability: The same by calibrated probability.
        output_gaps: For each token of the answer the distance of the second best, in logits;
            ``None`` where it was not asked for.
        exact: Whether the gap that rounding leaves between speculation and plain decoding was
            narrowed.
        redecided_tokens: Tokens that were decided again, by a forward of their own.
        reused_prompt_tokens: Tokens of the prompt that the target's cache held already.
        ahead_s: Time spent drafting ahead while replies were awaited; no part of ``draft_s``.
        ahead_nodes: Nodes forwarded then.
        ahead_rounds: Rounds behind one that drafted ahead.
        ahead_hits: Those of them that began from what it had drafted ahead.
        saved_s: Time of drafting that rounds were spared, by the draft's latency table.
        wasted_s: Part of ``ahead_s`` that no round has used.
    """

    method: str
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    ttft_s: float
    total_s: float
    rounds: int
    round_tokens: int
    drafted_nodes: int
    sent_nodes: int
    accepted_tokens: int
    target_forwards: int
    draft_s: float | None
    server_draft_s: float | None
    target_busy_s: float
    target_held_s: float
    queue_s: float
    uplink_bytes: int
    downlink_bytes: int
    draft_j: float | None
    draft_net_j: float | None
    target_j: float | None
    target_net_j: float | None
    draft_energy_method: str | None
    target_energy_method: str | None
    output_ids: list[int]
    handed_over_tokens: int | None = None
    draft_reliability: list[tuple[int, float, int]] | None = None
    reliability: list[tuple[int, float, int]] | None = None
    output_gaps: list[float] | None = None
    exact: bool = False
    redecided_tokens: int = 0
    reused_prompt_tokens: int = 0
    ahead_s: float = 0.0
    ahead_nodes: int = 0
    ahead_rounds: int = 0
    ahead_hits: int = 0
    saved_s: float = 0.0
    wasted_s: float = 0.0


class LimitReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one limit in one answer.

    Attributes:
        tag: The limit, by its tag.
        limit: Its value, in the tag's unit.
        attained: The answer's figure, in the same unit; ``None`` where it was not measured.
        met: Whether that meets the limit within 5 %.
        attainable: The best value that was to be expected of this pair and link by their profile.
        feasible: Whether that meets the limit.
    """

    tag: str
    limit: float
    attained: float | None
    met: bool | None
    attainable: float
    feasible: bool


class GenerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one run returns: the answer and everything measured on the way.

    Attributes:
        text: The answer, special tokens left out, cut before a stop string that ended it.
        token_ids: The answer's token ids, an ending EOS included.
        finish_reason: ``stop``, ``length`` or ``cancelled``.
        request: The request's record.
        rounds: One record per speculative round; empty for plain decoding on the server.
        scores: How surely each token was chosen; ``None`` where it was not asked for.
        limits: What became of each limit; ``None`` without limits. They are held on average, not in
            every answer.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    request: RequestRecord
    rounds: list[RoundRecord]
    scores: list[TokenScore] | None = None
    limits: list[LimitReport] | None = None
