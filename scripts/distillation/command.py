"""The command: gather chats, train, report, ship."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from autodraft.errors import AutodraftError
from autodraft.models.embedded import EMBEDDED_TARGET, resolve_embedded
from autodraft.models.shipped_draft import FOLDER
from distillation.chat_writer import WriterSettings
from distillation.gathering import (
    PROGRESS_S,
    Sources,
    describe,
    load_sources,
    without_questions,
    write_chats,
)
from distillation.heldout import HeldOutReport, report_held_out, split_held_out
from distillation.samples import Chat, SampleFileError
from distillation.shipping import TrainingStory, ship
from distillation.student import OutputHead, choose_output_ids, cut_student, trained_weights
from distillation.training import Trainer, TrainingSettings, TrainingState, saved_output_ids

ROOT: Final = Path(__file__).resolve().parents[2]
CHECKPOINT_NAME: Final = "checkpoint.pt"
REPORT_NAME: Final = "report.json"
CHATS_FOLDER: Final = "chats"


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    transformers_logging.disable_progress_bar()
    try:
        _run(options, arguments)
    except (AutodraftError, SampleFileError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train_embedded_draft.py",
        description="Distil the embedded draft from the embedded target, on CPU, offline.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--work", type=Path, default=ROOT / "results" / "embedded_draft", help="work folder")
    add("--minutes", type=float, default=60.0, help="minutes of training, over all resumes")
    add(
        "--write-minutes",
        type=float,
        help="minutes of writing chats first; where left out: none if there are chats already, "
        "else as many as --minutes",
    )
    add("--samples", type=Path, nargs="*", default=[], help="further sample files (.npz)")
    add("--layers", type=_layers, default=(0, 3, 24, 29), help="layers of the target to cut")
    add("--output-tokens", type=int, default=8192, help="tokens that the student may say")
    add("--learning-rate", type=float, default=1.5e-3, help="highest learning rate")
    add("--batch-tokens", type=int, default=2560, help="padded tokens of a training step")
    add("--slots", type=int, default=128, help="chats written at once")
    add("--threads", type=int, default=os.cpu_count() or 1, help="torch threads")
    add("--seed", type=int, default=0, help="seed of chats and batches")
    add("--resume", action="store_true", help="go on from the checkpoint in the work folder")
    add("--ship", action="store_true", help="replace the weights in this repository")
    return parser


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    checkpoint = options.work / CHECKPOINT_NAME
    if checkpoint.exists() and not options.resume:
        raise ValueError(
            f"{checkpoint} is of an earlier run. Add --resume to go on with it, or name another "
            "folder with --work."
        )
    folder = resolve_embedded(EMBEDDED_TARGET)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sources = without_questions(_gather(options, folder, tokenizer), tokenizer, options.ship)
    print(describe(sources), flush=True)
    training, held_out = split_held_out([chat for chats in sources.values() for chat in chats])
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if checkpoint.exists():
        output_ids = saved_output_ids(checkpoint)
    else:
        output_ids = choose_output_ids(
            training, target.config.vocab_size, options.output_tokens, tokenizer.all_special_ids
        )
    student = cut_student(target, options.layers)
    del target
    head = OutputHead(student, output_ids)
    state = _train(options, student, head, training)
    report = report_held_out(student, head, held_out)
    _tell(report)
    result = asdict(report) | {"training": vars(state), "layers": options.layers}
    (options.work / REPORT_NAME).write_text(json.dumps(result, indent=2) + "\n")
    if options.ship:
        story = _story(arguments, state, sources, report)
        card = ship(FOLDER, trained_weights(student), output_ids, options.layers, story)
        print(f"shipped as version {card.version}: {FOLDER.relative_to(ROOT)}")


def _gather(options: argparse.Namespace, folder: Path, tokenizer: Any) -> Sources:
    """Write chats for the minutes asked for, and return all there are."""
    chats = options.work / CHATS_FOLDER
    chats.mkdir(parents=True, exist_ok=True)
    minutes = options.write_minutes
    if minutes is None:
        known = bool(options.samples) or any(chats.glob("*.npz"))
        minutes = 0.0 if known else options.minutes
    if minutes > 0:
        settings = WriterSettings(slots=options.slots)
        write_chats(chats, folder, tokenizer, settings, minutes, options.seed)
    return load_sources(options.samples, chats)


def _train(
    options: argparse.Namespace, student: Any, head: OutputHead, chats: Sequence[Chat]
) -> TrainingState:
    settings = TrainingSettings(
        minutes=options.minutes,
        learning_rate=options.learning_rate,
        tokens_per_batch=options.batch_tokens,
        seed=options.seed,
    )
    trainer = Trainer(student, head, settings)
    checkpoint = options.work / CHECKPOINT_NAME
    if checkpoint.exists():
        trainer.resume(checkpoint)
    told = trainer.state.elapsed_s

    def tell(state: TrainingState) -> None:
        nonlocal told
        if state.elapsed_s - told < PROGRESS_S:
            return
        told = state.elapsed_s
        print(
            f"training: {state.elapsed_s / 60:.1f} of {options.minutes:g} min, "
            f"epoch {state.epoch}, step {state.step}, loss {state.loss:.3f}, "
            f"{state.tokens / told:.0f} tokens/s",
            flush=True,
        )

    trainer.train(chats, tell, checkpoint)
    return trainer.state


def _tell(report: HeldOutReport) -> None:
    print(f"held out: {report.tokens} answer tokens")
    for name, value in _figures(report).items():
        print(f"  {name}: {value:.3f}")


def _figures(report: HeldOutReport) -> dict[str, float]:
    return {
        "top-1": report.top1,
        "top-4": report.top4,
        **{f"chain {depth}": mat for depth, mat in enumerate(report.chain_mat, start=1)},
        **{f"top-1, {category}": share for category, share in report.top1_of.items()},
    }


def _story(
    arguments: Sequence[str], state: TrainingState, sources: Sources, report: HeldOutReport
) -> TrainingStory:
    # Folders are this machine's and say nothing to others.
    words = [Path(word).name if os.sep in word else word for word in arguments]
    return TrainingStory(
        command=f"python scripts/train_embedded_draft.py {shlex.join(words)}",
        hours=state.elapsed_s / 3600,
        chats={
            name: (len(chats), sum(chat.num_answer_tokens for chat in chats))
            for name, chats in sources.items()
        },
        held_out=_figures(report),
    )
