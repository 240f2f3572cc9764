"""The command: choose the models, run the parts of the check in time, report.

What is not there (a compiler, time, memory for the large pair) is named in the report, and the rest
goes on. The report is written after every part, so that a machine that is taken away leaves what
was measured.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch

from autodraft.errors import AutodraftError
from autodraft.models.hardware import native_bfloat16
from autodraft.models.loader import DTYPES
from autodraft.models.runner import ModelRunner
from gpu_checks import lossless, rounds, tables
from gpu_checks.budget import Budget, Part
from gpu_checks.models import free_bytes, random_model, release_memory
from gpu_checks.report import PairTables, Report, Settings, table_lines
from gpu_checks.shapes import (
    PAIRS,
    RESERVE_BYTES,
    TINY_PAIRS,
    CannotCheck,
    Shape,
    choose_pair,
    small_shape,
)

FAULTS: Final = (AutodraftError, CannotCheck, OSError, RuntimeError, ValueError)
"""What ends one part of the check and not the others; a device that is out of memory among it."""
GRACE_S: Final = 5.0
FIRST_PROGRAM_S: Final = 60.0
"""Compiling a large model's first program is not begun with less time than this left."""
DRAFT_SHARE: Final = 0.4
"""Part of the time of a pair's tables that the draft may take."""
PREFILL_SHARE: Final = 0.2
"""Part of the target's time that is kept for prompts."""
TARGET_SEED: Final = 0
DRAFT_SEED: Final = 1


class Check:
    """One run of the check."""

    def __init__(self, settings: Settings, budget: Budget) -> None:
        self.settings = settings
        self.budget = budget
        self.report = Report(settings)
        self._families = TINY_PAIRS if settings.tiny else PAIRS
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run every part; those that matter most come first."""
        families = list(self._families)
        self._part("losslessness", 0.2, partial(self._prove, families, False))
        self._part("memory copy", 0.05, self._bandwidth)
        self._part("choice of models", 0.05, lambda _: self._choose())
        pairs = self.report.pairs
        for pair in pairs[:1]:
            self._part("tables", 0.25, partial(self._tables, pair))
            self._part("rounds", 0.2, partial(self._rounds, pair))
        for pair in pairs[1:]:
            self._part(f"tables of {pair.pair.target.name}", 0.1, partial(self._tables, pair))
        self.report.compiled_skipped = self._no_compiling()
        if self.report.compiled_skipped is not None:
            _say(f"compiled: skipped: {self.report.compiled_skipped}")
            return
        proof = "losslessness, compiled"
        self._part(f"{proof}: {families[0]}", 0.15, partial(self._prove, families[:1], True))
        for pair in pairs[:1]:
            self._part("tables, compiled", 1.0, partial(self._compiled_tables, pair))
        for family in families[1:]:
            self._part(f"{proof}: {family}", 0.15, partial(self._prove, [family], True))

    def finish(self, complete: bool) -> str:
        """Write the report and return it as one line; ``complete`` is whether all parts ended."""
        with self._lock:
            end = {
                "dropped": self.budget.dropped,
                "complete": complete,
                "seconds": round(self.budget.spent_s, 1),
            }
            text = json.dumps(self.report.as_dict() | end, allow_nan=False)
            if self.settings.out is not None:
                self.settings.out.write_text(text + "\n", encoding="utf-8")
            return text

    def _part(self, name: str, share: float, work: Callable[[Part], None]) -> None:
        part = self.budget.part(share)
        if part.left_s <= 0:
            part.drop(name)
            return
        started = self.budget.spent_s
        try:
            work(part)
        except FAULTS as error:
            reason = " ".join(str(error).split())[:500]
            self.report.failed.append({"part": name, "reason": f"{type(error).__name__}: {reason}"})
            _say(f"{name}: failed: {reason}")
        release_memory()
        _say(f"{name}: {self.budget.spent_s - started:.1f} s, {self.budget.left_s:.0f} s left")
        self.finish(complete=False)

    def _within(self, seconds: float) -> Part:
        """Return a part of so many seconds inside another."""
        return self.budget.part(seconds / self.budget.seconds)

    def _choose(self) -> None:
        settings = self.settings
        itemsize, free = settings.dtype.itemsize, free_bytes(settings.device)
        reserve = 0 if settings.tiny else RESERVE_BYTES
        for family, pairs in self._families.items():
            try:
                pair, why = choose_pair(pairs, free, itemsize, settings.grid.slots, reserve)
            except CannotCheck:
                if not self.report.pairs:
                    raise
                self.budget.dropped.append(f"tables of {family}: none of its pairs fits")
                continue
            self.report.pairs.append(PairTables(pair, why, itemsize))
            _say(f"{family}: {pair.target.name} with {pair.draft.name}, {why}")

    def _prove(self, families: Sequence[str], compile: bool, part: Part) -> None:
        settings, comparisons = self.settings, self.report.comparisons
        plan = lossless.COMPILED_PLAN if compile else lossless.PLAN
        if settings.tiny:
            plan = lossless.TINY_PLAN
        for number, family in enumerate(families):
            shape = small_shape(family, settings.tiny)
            prover = lossless.Prover(shape, settings.device, settings.seed, compile)
            share = self._within(part.left_s / (len(families) - number))
            prover.prove(plan, share, comparisons)
        found = lossless.verdict(comparisons)
        _say(
            f"lossless so far: {found['answers']} answers, {found['tokens']} tokens, "
            f"{found['ties']} ties, {found['faults']} faults"
        )

    def _bandwidth(self, _: Part) -> None:
        self.report.copied_gb_per_s = rate = tables.copy_gb_per_s(self.settings.device)
        _say(f"memory copy: {rate:.0f} GB/s, read and written")

    def _runner(self, shape: Shape, seed: int, compile: bool = False) -> ModelRunner:
        settings = self.settings
        model = random_model(shape, settings.device, settings.dtype, settings.seed + seed)
        return ModelRunner(model, shape.name, compile=compile)

    def _tables(self, found: PairTables, part: Part) -> None:
        pair, grid, seed = found.pair, self.settings.grid, self.settings.seed
        share = self._within(part.left_s * DRAFT_SHARE)
        draft = self._runner(pair.draft, DRAFT_SEED)
        tables.draft_steps(draft, grid, seed, share, found.draft_steps["eager"])
        del draft
        release_memory()
        target = self._runner(pair.target, TARGET_SEED)
        most = self._within(part.left_s * (1 - PREFILL_SHARE))
        tables.verifications(target, grid, seed, most, found.verifications["eager"])
        tables.prefills(target, grid, seed, part, found.prefills)
        self._show(found, "eager")

    def _compiled_tables(self, found: PairTables, part: Part) -> None:
        pair, grid, seed = found.pair, self.settings.grid, self.settings.seed
        least_s = 0.0 if self.settings.tiny else FIRST_PROGRAM_S
        share = self._within(part.left_s * DRAFT_SHARE)
        for shape, cells, measure, its_part, its_seed in (
            (pair.draft, found.draft_steps, tables.draft_steps, share, DRAFT_SEED),
            (pair.target, found.verifications, tables.verifications, part, TARGET_SEED),
        ):
            if part.left_s < least_s:
                part.drop(f"{cells['compiled'].name}: all of it")
                continue
            runner = self._runner(shape, its_seed, compile=True)
            measure(runner, grid, seed, its_part, cells["compiled"])
            del runner
            release_memory()
        self._show(found, "compiled")

    def _show(self, found: PairTables, mode: str) -> None:
        pair, rows = found.pair, found.tables(self.report.copied_gb_per_s)
        for name, label, shape in (
            ("draft_step_ms", "width", pair.draft),
            ("verify_ms", "rows", pair.target),
        ):
            _say(f"{shape.name}, {mode}, ms by ({label}, context):")
            for line in table_lines(rows[name][mode], label):
                _say(line)

    def _rounds(self, found: PairTables, part: Part) -> None:
        settings, pair = self.settings, found.pair
        target = rounds.TargetModel(
            pair.target, str(settings.device), settings.dtype, settings.seed + TARGET_SEED
        )
        plan = rounds.TINY_PLAN if settings.tiny else rounds.PLAN
        self.report.outcome = outcome = rounds.Outcome(plan)
        outcome.measure(target, self._runner(pair.draft, DRAFT_SEED), part)
        figures = outcome.as_dict()
        _say(f"server_only: {figures['server_only_tokens_per_s']} tokens/s")
        for shape in figures["shapes"]:
            _say(
                f"{shape['method']} {shape['width']}x{shape['max_depth']}, acceptance replayed: "
                f"{shape['round_ms']} ms a round, {shape['tokens_per_s']} tokens/s"
            )

    def _no_compiling(self) -> str | None:
        """Return why nothing is compiled here; None where it can be."""
        settings = self.settings
        if settings.compiled == "no":
            return "--compiled no"
        if settings.compiled == "auto" and settings.device.type != "cuda":
            return f"not tried on {settings.device.type}; --compiled yes tries it"
        trial = torch.ones(8, device=settings.device)
        try:
            torch.compile(lambda values: (values + 1).sum())(trial)
        except (ImportError, OSError, RuntimeError) as error:
            return f"torch.compile does not run here: {' '.join(str(error).split())[:300]}"
        return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu_check.sh",
        description="Check AutoDraft on a CUDA machine: losslessness, latency tables, a round.",
        epilog="Standard output ends with the report, one JSON line. Exit status: 0 all held, "
        "1 losslessness did not hold or a part broke, 2 it cannot run here.",
    )
    add = parser.add_argument
    add("--device", default="cuda:0", help="cuda:N or cpu (default cuda:0)")
    add("--dtype", choices=("auto", *DTYPES), default="auto", help="of the large models")
    add("--tiny", action="store_true", help="toy sizes: does it run at all?")
    add("--compiled", choices=("auto", "yes", "no"), default="auto", help="auto: on CUDA only")
    add("--minutes", type=_minutes, default=8.0, help="time for all of it (default 8)")
    add("--seed", type=int, default=0, help="of weights, prompts and trees (default 0)")
    add("--out", type=Path, help="file that takes the report as well, after every part")
    return parser


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e4:
        raise argparse.ArgumentTypeError(f"{text} is no number of minutes above 0")
    return value


def _settings(options: argparse.Namespace) -> Settings:
    """Return what was asked for, checked.

    Raises:
        CannotCheck: If this machine or this file system has not what it takes.
    """
    try:
        device = torch.device(options.device)
    except RuntimeError as error:
        raise CannotCheck(f"--device {options.device}: cuda:N or cpu is allowed.") from error
    if device.type not in ("cuda", "cpu"):
        raise CannotCheck(f"--device {options.device}: cuda:N or cpu is allowed.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CannotCheck(
            f"--device {device}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA "
            "devices here. Name another Python with --python, or --device cpu --tiny to see "
            "whether the rest works."
        )
    if options.out is not None and not options.out.absolute().parent.is_dir():
        raise CannotCheck(f"--out {options.out}: there is no such folder. Make it first.")
    dtype = DTYPES.get(options.dtype)
    if dtype is None:
        below = torch.float16 if device.type == "cuda" else torch.float32
        dtype = torch.bfloat16 if native_bfloat16(device) else below
    return Settings(device, dtype, options.tiny, options.compiled, options.seed, options.out)


def main(arguments: Sequence[str], began: float | None = None) -> int:
    """Run the command; return its exit status.

    Args:
        arguments: Its arguments.
        began: When its time began, by ``time.perf_counter()``; None is now.
    """
    options = _parser().parse_args(arguments)
    budget = Budget(options.minutes * 60, began=began)
    try:
        check = Check(_settings(options), budget)
    except CannotCheck as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    def give_up() -> None:
        budget.dropped.append("what was running when the time was over")
        print(check.finish(complete=False), flush=True)
        # What runs is one call into torch that nothing else can end; the server ends by itself.
        os._exit(0 if check.report.held else 1)

    watchdog = threading.Timer(budget.seconds - budget.spent_s - GRACE_S, give_up)
    watchdog.daemon = True
    watchdog.start()
    check.run()
    watchdog.cancel()
    print(check.finish(complete=True), flush=True)
    return 0 if check.report.held else 1
