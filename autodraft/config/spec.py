"""One method as it is run: which, where, within which limits.

This module knows no configuration that asks for it, and no policy that drafts by it.
"""

from typing import Final, Literal

from pydantic import Field, field_validator, model_validator

from autodraft.config.base import Strict
from autodraft.config.knob import did_you_mean
from autodraft.config.methods import (
    ABLATION_MODES,
    ADAPTIVE,
    AT_SERVER,
    FIXED_TREE_WHEN_AUTO,
    METHOD_IDS,
    METHOD_NAMES,
    WITH_DRAFT_MODEL,
)
from autodraft.config.setup import OBJECTIVES, SloConfig
from autodraft.errors import ConfigError

AVAILABLE_METHODS: Final = frozenset(
    {"server_only", "chain", "fixed_tree", "opt_tree", "autodraft", "lookup"}
    | {"chain@server", "fixed_tree@server", "opt_tree@server", "lookup@server"}
)


class MethodSpec(Strict):
    """One method as it is run: which, where, within which limits.

    Attributes:
        method: Method id.
        placement: Where drafting runs.
        width: Most frontier nodes expanded in one level; 0 without a draft model.
        max_depth: Greatest depth of a tree, edges from the root.
        node_budget: Most drafted nodes sent in a round, root excluded.
        variant: What tells apart two specs of one method, for example ``_d2``.
        retrieval: Graft retrieved continuations into the draft model's tree.
        tuned: The shape is to be the one that tuning chose for the benchmark and the link; the
            limits here are what is taken where nothing was tuned.
        objective: What autodraft weighs against time; other methods do not know it.
        cs: Cost sensitivity of autodraft, from 0 (speed first) to 1 (objective first); ``None`` for
            every other method.
        mode: Which part of autodraft is left out; ``full`` for none, and for every other method.
        handover: Let the server decode alone where speculation does not pay (autodraft).
        fixed: Width, depth and nodes that autodraft's modes ``no_width``, ``no_depth`` and
            ``no_nodes`` hold fixed, each within the limits above.
        proactive: Draft ahead while a verify is in flight (autodraft at the user).
        slo: Limits that autodraft follows beside ``cs``; other methods do not know them.
    """

    method: str
    placement: Literal["user", "server"] = "user"
    width: int = Field(ge=0)
    max_depth: int = Field(ge=0)
    node_budget: int = Field(ge=0)
    variant: str = ""
    retrieval: bool = False
    tuned: bool = False
    objective: str = OBJECTIVES[0]
    cs: float | None = Field(default=None, ge=0, le=1)
    mode: str = ABLATION_MODES[0]
    handover: bool = False
    fixed: tuple[int, int, int] = FIXED_TREE_WHEN_AUTO
    proactive: bool = False
    slo: SloConfig = SloConfig()

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method in METHOD_IDS:
            return method
        raise ValueError(unknown_method(method, METHOD_IDS))

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, objective: str) -> str:
        return _one_of("objective", objective, OBJECTIVES)

    @field_validator("mode")
    @classmethod
    def _known_mode(cls, mode: str) -> str:
        return _one_of("mode", mode, ABLATION_MODES)

    @model_validator(mode="after")
    def _weighs_only_if_it_adapts(self) -> "MethodSpec":
        if self.method == ADAPTIVE:
            if self.cs is None:
                raise ValueError(
                    f"{ADAPTIVE} needs cs, from 0 (speed first) to 1 (objective first), and it is "
                    "None. Give a number, or take the spec from ExperimentConfig.adaptive(cs)."
                )
            return self
        for name in ("cs", "mode", "handover", "proactive", "slo"):
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}={value!r} is for {ADAPTIVE} alone, and the method is {self.method}. "
                    "Leave it out."
                )
        return self

    @model_validator(mode="after")
    def _drafts_ahead_where_it_waits(self) -> "MethodSpec":
        if self.proactive and self.placement == "server":
            raise ValueError(
                "proactive=True drafts ahead while a reply is under way, and who drafts on the "
                "server waits for none. Leave it out."
            )
        return self

    @model_validator(mode="after")
    def _grafts_into_something(self) -> "MethodSpec":
        if self.retrieval and not self.needs_draft_model:
            raise ValueError(
                "retrieval=True grafts retrieved continuations into the tree of a draft model, and "
                f"{self.method} has none. Leave it out, or use it with one of "
                f"{', '.join(WITH_DRAFT_MODEL)}."
            )
        return self

    @property
    def needs_draft_model(self) -> bool:
        """Whether the method drafts with the draft model."""
        return self.method in WITH_DRAFT_MODEL

    @property
    def name(self) -> str:
        """The method id with its placement suffix, as METHODS_CSV has it."""
        return self.method + (AT_SERVER if self.placement == "server" else "")

    @property
    def label(self) -> str:
        """The name for tables and records, unique within a run."""
        retrieval = WITH_DRAFT_MODEL[self.method] if self.retrieval else ""
        at_server = AT_SERVER if self.placement == "server" else ""
        return self.method + self.variant + retrieval + at_server

    @property
    def curve(self) -> str:
        """The label without its cost sensitivity: what the points of one curve have in common."""
        return self.label if self.cs is None else self.label.replace(cs_ending(self.cs), "", 1)

    def require_available(self) -> None:
        """Do nothing if the method exists in this version.

        Raises:
            ConfigError: If it does not exist yet.
        """
        if self.name in AVAILABLE_METHODS:
            return
        available = [name for name in METHOD_NAMES if name in AVAILABLE_METHODS]
        raise ConfigError(
            f"The method {self.name} does not exist yet in this version. Those that do: "
            f"{', '.join(available)}. Choose them with METHODS_CSV, for example "
            f"--set algorithms.METHODS_CSV={','.join(available)}"
        )


def cs_ending(cs: float) -> str:
    """Return what a cost sensitivity is in a label: ``_cs0``, ``_cs0.5``."""
    return f"_cs{float(cs)!r}".removesuffix(".0")


def _one_of(field: str, value: str, known: tuple[str, ...]) -> str:
    if value in known:
        return value
    hint = f"There is no {field} {value!r}. {did_you_mean(value, known)}".rstrip()
    raise ValueError(f"{hint} Allowed: {', '.join(known)}.")


def unknown_method(name: str, known: tuple[str, ...]) -> str:
    """Return the message for a method that does not exist."""
    text = f"There is no method {name!r}. {did_you_mean(name, known)}".rstrip()
    return f"{text} Methods: {', '.join(known)}."
