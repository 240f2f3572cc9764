"""Record how many drafted tokens a real pair of models accepts, round by round: trace.json.

    PYTHONPATH=scripts:. python -m gpu_checks.record

The embedded pair answers a few prompts in the tree shapes of ``SHAPES``, greedily. Random weights
accept nothing by themselves; ``replay`` makes them accept what was recorded here.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from autodraft import __version__
from autodraft.engine.drafter import Drafter
from autodraft.models.embedded import EMBEDDED_DRAFT, EMBEDDED_TARGET
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from gpu_checks.decoding import decode_in_rounds
from gpu_checks.replay import SHAPES, TRACE_PATH, TreeShape

TOKENS: Final = 96
PROMPTS: Final = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain in simple words how a rainbow comes about.",
    "List five ways to save water at home.",
    "A train travels 60 km in 45 minutes. What is its speed in km/h? Think step by step.",
    "Write a short letter to a friend who has moved to another town.",
    "Summarise the plot of Romeo and Juliet in three sentences.",
    "Translate to French: The library opens at nine and closes at six.",
)


def record(target: LoadedModel, draft: LoadedModel, shape: TreeShape, tokens: int) -> list[int]:
    """Return the accepted length of every round of every answer but each answer's last.

    The last round is bounded by the tokens that are left, not by what the target agrees with.
    """
    accepted: list[int] = []
    for text in PROMPTS:
        prompt = target.tokenizer.encode_chat([{"role": "user", "content": text}])
        answer = decode_in_rounds(
            target.runner,
            Drafter(draft.runner),
            shape.policy(),
            prompt,
            tokens,
            target.tokenizer.eos_ids,
        )
        accepted += [round_.accepted_length for round_ in answer.rounds[:-1]]
    return accepted


def main(arguments: Sequence[str]) -> int:
    """Record and write the trace; takes no arguments."""
    if arguments:
        print("gpu_checks.record takes no arguments.", file=sys.stderr)
        return 2
    target = load_model(ModelSource(EMBEDDED_TARGET))
    draft = load_model(ModelSource(EMBEDDED_DRAFT, drafts=True))
    shapes = []
    for shape in SHAPES:
        accepted = record(target, draft, shape, TOKENS)
        shapes.append({**shape.as_dict(), "accepted": accepted})
        print(f"{shape.label}: {1 + sum(accepted) / len(accepted):.2f} tokens per round")
    trace = {
        "source": (
            f"{EMBEDDED_TARGET} verifying {EMBEDDED_DRAFT}, {target.runner.dtype}, greedy, "
            f"{len(PROMPTS)} prompts of one turn, up to {TOKENS} tokens each, AutoDraft "
            f"{__version__}; accepted lengths of all rounds but the last of each answer"
        ),
        "command": "PYTHONPATH=scripts:. python -m gpu_checks.record",
        "shapes": shapes,
    }
    TRACE_PATH.write_text(as_text(trace), encoding="utf-8")
    return 0


def as_text(trace: Mapping[str, Any]) -> str:
    """Return a trace as JSON, a line for each shape."""
    head = [f'"{name}": {json.dumps(trace[name])},' for name in ("source", "command")]
    shapes = ",\n".join(f"  {json.dumps(shape)}" for shape in trace["shapes"])
    return "\n".join(["{", *head, f'"shapes": [\n{shapes}\n]', "}"]) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
