"""Training a student on what the target said and thought: a loop against the clock.

The learning rate follows a cosine over the minutes asked for, so that a run of any length ends
annealed. Its state is saved as it goes; a killed run goes on from there.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from distillation.batches import Batch, LabelMix, epoch, make_batch
from distillation.samples import Chat
from distillation.student import OutputHead, trained_weights

_WARMUP_SHARE: Final = 0.03


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    Attributes:
        minutes: Time to train, over all resumes.
        learning_rate: Highest rate of AdamW.
        weight_decay: Decoupled weight decay.
        tokens_per_batch: Padded tokens of a step.
        mix: What a position teaches.
        autocast: Whether to multiply in bfloat16.
        checkpoint_s: Seconds between saved states.
        seed: Of the order of batches.
    """

    minutes: float
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.05
    tokens_per_batch: int = 4096
    mix: LabelMix = field(default_factory=LabelMix)
    autocast: bool = True
    checkpoint_s: float = 300.0
    seed: int = 0


@dataclass
class TrainingState:
    """Where a run stands."""

    step: int = 0
    epoch: int = 0
    elapsed_s: float = 0.0
    tokens: int = 0
    loss: float = math.nan


class Trainer:
    """Trains one student with one output head."""

    def __init__(self, student: Any, head: OutputHead, settings: TrainingSettings) -> None:
        self._student = student
        self._head = head
        self._settings = settings
        self._optimizer = _optimizer(student, settings)
        self.state = TrainingState()

    def train(
        self,
        chats: Sequence[Chat],
        report: Callable[[TrainingState], None],
        checkpoint: Path | None = None,
    ) -> None:
        """Train until the minutes are over.

        Args:
            chats: What to train on, over and over.
            report: Called after each step.
            checkpoint: Where to save the state, or None.
        """
        self._student.train()
        before, started = self.state.elapsed_s, time.perf_counter()
        saved = started
        while not self._over:
            rng = np.random.default_rng((self._settings.seed, self.state.epoch))
            for group in epoch(chats, self._settings.tokens_per_batch, rng):
                self._step(make_batch(group, self._settings.mix))
                now = time.perf_counter()
                self.state.elapsed_s = before + now - started
                report(self.state)
                if checkpoint and now - saved > self._settings.checkpoint_s:
                    self.save(checkpoint)
                    saved = now
                if self._over:
                    break
            self.state.epoch += 1
        if checkpoint:
            self.save(checkpoint)
        self._student.eval()

    @property
    def _progress(self) -> float:
        return self.state.elapsed_s / (60 * self._settings.minutes)

    @property
    def _over(self) -> bool:
        return self._progress >= 1

    def _step(self, batch: Batch) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * _schedule(self._progress)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._settings.autocast):
            loss = distillation_loss(self._student, self._head, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._student.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        value = float(loss.detach())
        smoothed = value if math.isnan(self.state.loss) else 0.98 * self.state.loss + 0.02 * value
        self.state.loss = smoothed
        self.state.step += 1
        self.state.tokens += len(batch.positions)

    def save(self, path: Path) -> None:
        """Save everything that training needs to go on, complete or not at all."""
        part = path.with_name(f".{path.name}.part")
        torch.save(
            {
                "weights": trained_weights(self._student),
                "optimizer": self._optimizer.state_dict(),
                "output_ids": self._head.ids,
                "state": vars(self.state),
            },
            part,
        )
        part.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a saved state of the same architecture and output vocabulary.

        Raises:
            ValueError: If it is of another one.
        """
        saved = torch.load(path, weights_only=True)
        if not torch.equal(saved["output_ids"], self._head.ids):
            raise ValueError(f"{path} has another output vocabulary; start in an empty folder.")
        self._student.load_state_dict(saved["weights"], strict=False)
        self._optimizer.load_state_dict(saved["optimizer"])
        self.state = TrainingState(**saved["state"])


def saved_output_ids(path: Path) -> npt.NDArray[np.int64]:
    """Return the output vocabulary of a saved state."""
    ids: npt.NDArray[np.int64] = torch.load(path, weights_only=True)["output_ids"].numpy()
    return ids


def distillation_loss(student: Any, head: OutputHead, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy between expected and predicted next tokens, per unit weight.

    Labels outside the output vocabulary are left out: the student cannot say them.
    """
    hidden = student.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    taught = hidden.flatten(0, 1)[batch.positions]
    logits = head.logits(taught).float()
    columns = head.column_of[batch.label_ids]
    weights = batch.label_weights * (columns >= 0)
    chosen = logits.gather(1, columns.clamp(min=0))
    expected = (weights * chosen).sum()
    total = (weights.sum(1) * logits.logsumexp(1)).sum()
    return (total - expected) / weights.sum()


def _optimizer(student: Any, settings: TrainingSettings) -> torch.optim.AdamW:
    trained = [weight for weight in student.parameters() if weight.requires_grad]
    groups = [
        {"params": [w for w in trained if w.ndim == 2], "weight_decay": settings.weight_decay},
        {"params": [w for w in trained if w.ndim != 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)


def _schedule(progress: float) -> float:
    """Return the share of the highest learning rate: a short rise, then a cosine to 2 %."""
    if progress < _WARMUP_SHARE:
        return progress / _WARMUP_SHARE + 0.01
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
