"""transformers' own ``generate`` in a process of its own: a line of JSON in, a line of JSON out.

Run as ``python _stock_generate.py FOLDER DTYPE``. AutoDraft is not imported, so that the process
has the environment it was started with, and no module of the model is replaced.
"""

import json
import sys
import time
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Stamps:
    """A streamer that notes when tokens come; the prompt is the first thing that it is given."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: torch.Tensor) -> None:
        """Take the prompt, later a token."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Take note that the answer has ended."""


def streamed_bytes(model: Any) -> int:
    """Return the bytes of weights that a decoding step reads.

    They are all weights but an input embedding that is not the head's too, of which a step reads
    one row.
    """
    total = sum(int(weight.nbytes) for weight in model.parameters())  # each one once
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return total if embedding is head else total - int(embedding.nbytes)


def answer(model: Any, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Answer a prompt greedily; times are from the call to the first and to the last token."""
    ids = torch.tensor([prompt])
    stamps = Stamps()
    started = time.perf_counter()
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        use_cache=True,
        max_new_tokens=tokens,
        streamer=stamps,
    )
    _, first, *later = stamps.times
    return {
        "token_ids": output[0, len(prompt) :].tolist(),
        "ttft_s": first - started,
        "total_s": (later[-1] if later else first) - started,
    }


def main() -> None:
    """Say what was loaded, then answer until the input ends."""
    folder, dtype = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).eval()
    loaded = {"weights_bytes": streamed_bytes(model), "threads": torch.get_num_threads()}
    print(json.dumps(loaded), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(model, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
