"""The settings of an experiment: typed, strict, immutable, one class for each block of a file.

`ExperimentConfig` holds the blocks and says which methods they ask for. It can be built in Python
alone; `autodraft.config_io` reads it from XML or YAML. This module knows no files, models or
sockets.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from autodraft.config.base import Block, Strict
from autodraft.config.knob import did_you_mean
from autodraft.config.methods import (
    AT_SERVER,
    METHOD_IDS,
    METHOD_NAMES,
    WITH_DRAFT_MODEL,
    AlgorithmsConfig,
    RunConfig,
    SamplingConfig,
    TreeConfig,
)
from autodraft.config.setup import (
    DatasetConfig,
    ModelsConfig,
    NetworkConfig,
    ObjectiveConfig,
    RuntimeConfig,
    SloConfig,
)
from autodraft.errors import ConfigError

AVAILABLE_METHODS: Final = frozenset({"server_only", "chain", "fixed_tree", "opt_tree", "lookup"})
CHAIN_D_WHEN_AUTO: Final = 4
DEFAULT_METHOD: Final = "opt_tree"
"""The method of a single request that names none."""

SWITCHES: Final = {  # method name -> the switch that asks for it, in the order of the tables
    "server_only": "enable_server_only_ar",
    "chain": "enable_hybrid_non_tree_sd",
    "fixed_tree": "enable_hybrid_fixed_tree",
    "opt_tree": "enable_hybrid_opt_tree",
    "autodraft": "enable_hybrid_autodraft",
    "lookup": "enable_lookup",
    "chain@server": "enable_server_only_non_tree_sd",
    "opt_tree@server": "enable_server_only_opt_tree",
    "autodraft@server": "enable_server_only_autodraft",
}


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
    """

    method: str
    placement: Literal["user", "server"] = "user"
    width: int = Field(ge=0)
    max_depth: int = Field(ge=0)
    node_budget: int = Field(ge=0)
    variant: str = ""
    retrieval: bool = False
    tuned: bool = False

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method in METHOD_IDS:
            return method
        raise ValueError(_unknown_method(method, METHOD_IDS))

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


class _Shape(NamedTuple):
    """Limits of one method."""

    width: int
    depth: int
    nodes: int
    variant: str = ""
    retrieval: bool = False

    def within(self, tree: TreeConfig) -> "_Shape":
        """Return the shape cut to the ceilings; no tree is deeper or wider than it has nodes."""
        nodes = min(self.nodes, tree.proposed_nodes)
        depth = min(self.depth, tree.proposed_max_depth, nodes)
        return self._replace(width=min(self.width, nodes), depth=depth, nodes=nodes)


class ExperimentConfig(Strict):
    """All settings of an experiment, resolved; `methods` says what they run."""

    runtime: RuntimeConfig = RuntimeConfig()
    models: ModelsConfig
    objective: ObjectiveConfig = ObjectiveConfig()
    dataset: DatasetConfig = DatasetConfig()
    algorithms: AlgorithmsConfig = AlgorithmsConfig()
    tree: TreeConfig = TreeConfig()
    network: NetworkConfig = NetworkConfig()
    slo: SloConfig = SloConfig()
    sampling: SamplingConfig = SamplingConfig()
    run: RunConfig = RunConfig()

    def methods(self) -> tuple[MethodSpec, ...]:
        """Return the methods that the algorithms block asks for.

        Every limit holds below PROPOSED_NODES and PROPOSED_MAX_DEPTH.

        Returns:
            In the order of METHODS_CSV; for switches: server_only, chain, fixed_tree, opt_tree,
            autodraft, lookup, then those on the server. One spec for each length of a chain.

        Raises:
            ConfigError: If no method is asked for.
        """
        names = self._names()
        if not names:
            raise ConfigError(
                "No method is switched on in the block algorithms. Set a switch to 1, or name "
                "methods: --set algorithms.METHODS_CSV=server_only,chain,fixed_tree,opt_tree"
            )
        return tuple(spec for name in names for spec in self._specs(name))

    def method(self, name: str) -> MethodSpec:
        """Return one method with the limits of this configuration, asked for or not.

        Args:
            name: A method name as in METHODS_CSV, or a label (``chain_d2``) where CHAIN_D names
                several lengths.

        Raises:
            ConfigError: If there is no such method, or the name stands for several.
        """
        specs = {spec.label: spec for known in METHOD_NAMES for spec in self._specs(known)}
        if name in specs:
            return specs[name]
        if name in METHOD_NAMES:
            labels = ", ".join(label for label, spec in specs.items() if spec.name == name)
            raise ConfigError(f"CHAIN_D names several lengths, so say which: {labels}.")
        raise ConfigError(_unknown_method(name, tuple(specs)))

    @property
    def needs_draft_model(self) -> bool:
        """Whether any of the methods asked for drafts with the draft model."""
        return any(name.removesuffix(AT_SERVER) in WITH_DRAFT_MODEL for name in self._names())

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know of the methods asked for: what was cut or chosen."""
        asked = {name.removesuffix(AT_SERVER) for name in self._names()}
        tree, notes = self.tree, []
        if "chain" in asked and self.algorithms.chain_d is None:
            notes.append(
                "CHAIN_D=auto is not tuned yet in this version: the chain takes "
                f"d={self._chain_lengths()[0]}."
            )
        limits = []
        if "chain" in asked:
            limits += [("CHAIN_D", d, self._longest_chain()) for d in self.algorithms.chain_d or ()]
        if "fixed_tree" in asked:
            cut = _fixed_tree(self).within(tree)
            limits.append(("FIXED_TREE_WIDTH", tree.fixed_tree_width, cut.width))
            limits.append(("FIXED_TREE_DEPTH", tree.fixed_tree_depth, cut.depth))
            limits.append(("FIXED_TREE_NODES", tree.fixed_tree_nodes, cut.nodes))
        if "opt_tree" in asked:
            limits.append(("OPT_TREE_WIDTH", tree.opt_tree_width, tree.proposed_nodes))
        notes += [
            f"{tag}={wanted} is cut to {most} (PROPOSED_NODES={tree.proposed_nodes}, "
            f"PROPOSED_MAX_DEPTH={tree.proposed_max_depth}, and no tree is wider or deeper than "
            "it has nodes)."
            for tag, wanted, most in limits
            if wanted > most
        ]
        return tuple(notes)

    def _names(self) -> tuple[str, ...]:
        if self.algorithms.method_names is not None:
            return self.algorithms.method_names
        return tuple(name for name, flag in SWITCHES.items() if getattr(self.algorithms, flag))

    def _specs(self, name: str) -> tuple[MethodSpec, ...]:
        method = name.removesuffix(AT_SERVER)
        return tuple(
            MethodSpec(
                method=method,
                placement="user" if name == method else "server",
                width=shape.width,
                max_depth=shape.depth,
                node_budget=shape.nodes,
                variant=shape.variant,
                retrieval=shape.retrieval,
            )
            for shape in (shape.within(self.tree) for shape in _SHAPES[method](self))
        )

    def _longest_chain(self) -> int:
        return min(self.tree.proposed_max_depth, self.tree.proposed_nodes)

    def _chain_lengths(self) -> tuple[int, ...]:
        asked = self.algorithms.chain_d or (CHAIN_D_WHEN_AUTO,)
        return tuple(dict.fromkeys(min(d, self._longest_chain()) for d in asked))


def _unknown_method(name: str, known: tuple[str, ...]) -> str:
    text = f"There is no method {name!r}. {did_you_mean(name, known)}".rstrip()
    return f"{text} Methods: {', '.join(known)}."


def _chains(config: ExperimentConfig) -> tuple[_Shape, ...]:
    lengths = config._chain_lengths()
    return tuple(_Shape(1, d, d, f"_d{d}" if len(lengths) > 1 else "") for d in lengths)


def _fixed_tree(config: ExperimentConfig) -> _Shape:
    tree = config.tree
    return _Shape(tree.fixed_tree_width, tree.fixed_tree_depth, tree.fixed_tree_nodes)


def _ceilings(
    config: ExperimentConfig, width: int, *, retrieval: bool = False
) -> tuple[_Shape, ...]:
    tree = config.tree
    return (_Shape(width, tree.proposed_max_depth, tree.proposed_nodes, retrieval=retrieval),)


def _autodraft(config: ExperimentConfig) -> tuple[_Shape, ...]:
    retrieval = config.algorithms.retrieval_draft
    return _ceilings(config, config.tree.proposed_nodes, retrieval=retrieval)


_SHAPES: Final[dict[str, Callable[[ExperimentConfig], tuple[_Shape, ...]]]] = {
    "server_only": lambda _: (_Shape(0, 0, 0),),
    "chain": _chains,
    "fixed_tree": lambda config: (_fixed_tree(config),),
    "opt_tree": lambda config: _ceilings(config, config.tree.opt_tree_width),
    "autodraft": _autodraft,
    "lookup": lambda config: _ceilings(config, 0),
}

BLOCKS: Final[dict[str, type[Block]]] = {  # name of a block in files -> its class
    "runtime": RuntimeConfig,
    "models": ModelsConfig,
    "objective": ObjectiveConfig,
    "dataset": DatasetConfig,
    "algorithms": AlgorithmsConfig,
    "tree": TreeConfig,
    "network": NetworkConfig,
    "slo": SloConfig,
    "sampling": SamplingConfig,
    "run": RunConfig,
}
