"""The settings of an experiment: typed, strict, immutable, one class for each block of a file.

`ExperimentConfig` holds the blocks and says which methods they ask for. It can be built in Python
alone; `autodraft.config_io` reads it from XML or YAML. This module knows no files, models or
sockets.
"""

from itertools import product
from typing import Final

from autodraft.config.base import Block, Strict
from autodraft.config.methods import (
    ABLATION_MODES,
    ADAPTIVE,
    AT_SERVER,
    CHAIN_D_WHEN_AUTO,
    FIXED_TREE_WHEN_AUTO,
    METHOD_NAMES,
    OPT_TREE_WIDTH_WHEN_AUTO,
    AlgorithmsConfig,
    RunConfig,
    SamplingConfig,
    TreeConfig,
)
from autodraft.config.network import NetworkConfig
from autodraft.config.setup import (
    DatasetConfig,
    ModelsConfig,
    ObjectiveConfig,
    RuntimeConfig,
    SloConfig,
)
from autodraft.config.shapes import Shape, cuts, fixed_within, highest, shapes_of
from autodraft.config.spec import MethodSpec, cs_ending, unknown_method
from autodraft.errors import ConfigError

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
            autodraft, lookup, then those on the server. One spec for each shape of a method that
            differs after the cut to the ceilings; of autodraft, for each objective, cost
            sensitivity, mode and shape, the first one varying slowest.

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
            name: A method name as in METHODS_CSV, or a label (``chain_d2``) where it has several
                shapes.

        Raises:
            ConfigError: If there is no such method, or the name stands for several.
        """
        specs = {spec.label: spec for known in METHOD_NAMES for spec in self._specs(known)}
        if name in specs:
            return specs[name]
        if name in METHOD_NAMES:
            labels = ", ".join(label for label, spec in specs.items() if spec.name == name)
            raise ConfigError(f"{name} has several shapes here, so say which: {labels}.")
        raise ConfigError(unknown_method(name, tuple(specs)))

    def adaptive(
        self,
        cs: float,
        objective: str | None = None,
        name: str = ADAPTIVE,
        *,
        proactive: bool = False,
    ) -> MethodSpec:
        """Return autodraft for a single request: mode ``full``, within the first ceilings.

        Args:
            cs: Cost sensitivity, from 0 (speed first) to 1 (objective first).
            objective: What is weighed against time; None for the first of this configuration.
            name: ``autodraft`` or ``autodraft@server``.
            proactive: Draft ahead while a verify is in flight; the tag ENABLE_PROACTIVE is for runs
                of the harness.

        Raises:
            ConfigError: If ``cs`` is not from 0 to 1, one of the names does not exist, or drafting
                ahead is asked of the server.
        """
        if name not in (ADAPTIVE, ADAPTIVE + AT_SERVER):
            raise ConfigError(
                f"{name} takes no cs: only {ADAPTIVE} and {ADAPTIVE}{AT_SERVER} do. Take a method "
                "of another name from ExperimentConfig.method(name)."
            )
        if isinstance(cs, bool) or not isinstance(cs, int | float) or not 0 <= cs <= 1:
            raise ConfigError(
                f"cs={cs!r} is no cost sensitivity. Use a number from 0 (speed first) to 1 "
                "(objective first)."
            )
        (shape, _), *_ = shapes_of(ADAPTIVE, self.algorithms, self.tree)
        chosen = self.objective.objective_metrics[0] if objective is None else objective
        if proactive and name != ADAPTIVE:
            raise ConfigError(
                f"proactive=True is for {ADAPTIVE} alone: {name} drafts where it verifies, and "
                "there is nothing to wait for. Leave it out."
            )
        spec = self._adaptive(name, shape, chosen, cs, ABLATION_MODES[0])
        return spec.model_copy(update={"proactive": proactive})

    def reshaped(
        self, spec: MethodSpec, *, width: int, max_depth: int, node_budget: int
    ) -> MethodSpec:
        """Return a spec whose shape was tuned with the shape that tuning chose.

        Args:
            spec: A spec of this configuration with `MethodSpec.tuned`.
            width: Most frontier nodes expanded in one level.
            max_depth: Greatest depth of a tree.
            node_budget: Most drafted nodes sent in a round.

        Returns:
            The same method with the shape, cut to the highest ceilings.
        """
        shape = Shape(width, max_depth, node_budget).within(highest(self.tree))
        limits = {"width": shape.width, "max_depth": shape.depth, "node_budget": shape.nodes}
        return MethodSpec(**{**spec.model_dump(), **limits})

    def seeds(self) -> tuple[int, ...]:
        """Return the seeds that make a difference: greedy decoding draws nothing."""
        return self.sampling.seeds if self.sampling.temperature > 0 else self.sampling.seeds[:1]

    def choices(self) -> range:
        """Return the numbers of the answers to a question with one seed; greedy has one only."""
        return range(self.sampling.num_choices if self.sampling.temperature > 0 else 1)

    @property
    def draft_placements(self) -> frozenset[str]:
        """Where the methods asked for need a draft model: ``user``, ``server``, both or neither."""
        specs = (spec for name in self._names() for spec in self._specs(name))
        return frozenset(spec.placement for spec in specs if spec.needs_draft_model)

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know: what was cut, is tuned, or is not run."""
        asked = tuple(dict.fromkeys(name.removesuffix(AT_SERVER) for name in self._names()))
        notes = [_TUNED_NOTES[name] for name in asked if any(s.tuned for s in self._specs(name))]
        notes += [
            f"{cut.tag}={cut.wanted} is cut to {cut.most} (PROPOSED_NODES={cut.ceiling.nodes}, "
            f"PROPOSED_MAX_DEPTH={cut.ceiling.depth}, and no tree is wider or deeper than "
            "it has nodes)."
            for cut in cuts(asked, self.algorithms, self.tree)
        ]
        notes += self._same_as_full() if ADAPTIVE in asked else []
        if len(self.seeds()) < len(self.sampling.seeds):
            notes.append(
                f"SEED: {self.seeds()[0]} alone is run, because with TEMPERATURE=0 the answers do "
                "not depend on it."
            )
        if len(self.choices()) < self.sampling.num_choices:
            notes.append(
                f"NUM_CHOICES: one answer instead of {self.sampling.num_choices} is run, because "
                "with TEMPERATURE=0 all are equal."
            )
        jitter, rtt = max(self.network.jitter_ms), min(self.network.rtt_ms)
        if jitter > rtt:
            notes.append(
                f"JITTER_MS={jitter:g} is above RTT_MS={rtt:g}: delays are cut at 0, so their mean "
                "is longer than half of RTT_MS each way."
            )
        return tuple(notes)

    def _same_as_full(self) -> list[str]:
        """Return which ablations leave out what is not there anyway."""
        why = {}
        if (proactive := self.algorithms.enable_proactive) is not None:
            why["no_proactive"] = f"ENABLE_PROACTIVE={int(proactive)}"
        if not self.algorithms.retrieval_draft:
            why["no_retrieval"] = "RETRIEVAL_DRAFT=0"
        return [
            f"AUTODRAFT_ABLATION_MODES_CSV: {mode} is the same as full, because {why[mode]}."
            for mode in self.algorithms.autodraft_ablation_modes
            if mode in why
        ]

    def _names(self) -> tuple[str, ...]:
        if self.algorithms.method_names is not None:
            return self.algorithms.method_names
        return tuple(name for name, flag in SWITCHES.items() if getattr(self.algorithms, flag))

    def _specs(self, name: str) -> tuple[MethodSpec, ...]:
        method = name.removesuffix(AT_SERVER)
        if method == ADAPTIVE:
            return self._adaptive_specs(name)
        return tuple(
            MethodSpec(
                method=method,
                placement="user" if name == method else "server",
                width=shape.width,
                max_depth=shape.depth,
                node_budget=shape.nodes,
                variant=variant,
                tuned=shape.tuned,
            )
            for shape, variant in shapes_of(method, self.algorithms, self.tree)
        )

    def _adaptive_specs(self, name: str) -> tuple[MethodSpec, ...]:
        objectives = self.objective.objective_metrics
        modes = self.algorithms.autodraft_ablation_modes
        sensitivities = self.objective.autodraft_cs_list
        if name != ADAPTIVE:
            sensitivities = self.objective.server_only_autodraft_cs_list
        shapes = shapes_of(ADAPTIVE, self.algorithms, self.tree)
        specs = []
        for objective, cs, mode, (shape, ending) in product(
            objectives, sensitivities, modes, shapes
        ):
            variant = f"_{objective}" if len(objectives) > 1 else ""
            variant += cs_ending(cs) if len(sensitivities) > 1 else ""
            # A part that is left out is said even where it always is: it is not autodraft as such.
            variant += f"_{mode}" if mode != ABLATION_MODES[0] else ""
            spec = self._adaptive(name, shape, objective, cs, mode)
            specs.append(spec.model_copy(update={"variant": variant + ending}))
        return tuple(specs)

    def _adaptive(
        self, name: str, shape: Shape, objective: str, cs: float, mode: str
    ) -> MethodSpec:
        return MethodSpec(
            method=ADAPTIVE,
            placement="user" if name == ADAPTIVE else "server",
            width=shape.width,
            max_depth=shape.depth,
            node_budget=shape.nodes,
            retrieval=self.algorithms.retrieval_draft and mode not in _WITHOUT_RETRIEVAL,
            objective=objective,
            cs=cs,
            mode=mode,
            handover=self.algorithms.enable_handover and mode != "adaptive_only",
            fixed=fixed_within(shape, self.tree),
            proactive=name == ADAPTIVE and self._drafts_ahead(mode),
            slo=self.slo,
        )

    def _drafts_ahead(self, mode: str) -> bool:
        """Return whether a mode drafts ahead: as ENABLE_PROACTIVE says, else by its own nature."""
        wanted = self.algorithms.enable_proactive
        return mode not in _WITHOUT_PROACTIVE if wanted is None else wanted


_WITHOUT_PROACTIVE: Final = ("no_proactive", "adaptive_only")
_WITHOUT_RETRIEVAL: Final = ("no_retrieval", "adaptive_only")
_TUNE: Final = "what `python -m evaluation tune` chose for the benchmark and the link, else"
_TUNED_NOTES: Final = {
    "chain": f"CHAIN_D=auto takes {_TUNE} d={CHAIN_D_WHEN_AUTO}.",
    "fixed_tree": f"FIXED_TREE_*=auto takes {_TUNE} width {FIXED_TREE_WHEN_AUTO[0]}, depth "
    f"{FIXED_TREE_WHEN_AUTO[1]} and {FIXED_TREE_WHEN_AUTO[2]} nodes.",
    "opt_tree": f"OPT_TREE_WIDTH=auto takes {_TUNE} width {OPT_TREE_WIDTH_WHEN_AUTO} and the "
    "ceilings.",
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
