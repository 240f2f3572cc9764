"""Which shapes of a method are tried when it is tuned. This module measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from autodraft.config import ExperimentConfig, MethodSpec
from autodraft.errors import ConfigError

# Each drafted token is worth less than the one before it: steps of one at first, of two where the
# optimum is flat. Where nine in ten are accepted, one like the other, a chain of 8 yields 6.1
# tokens a round, of 10 6.9, of 12 7.5; where eight in ten are, 10 yields 4.6 of at most 5.
CHAIN_LENGTHS: Final = (1, 2, 3, 4, 5, 6, 8, 10)
# Width, depth, nodes. From a tree that costs little more than a chain up to 64 nodes, twice as many
# from step to step; of 16 and 32 nodes a shallow and a deep one, because depth costs draft steps
# and pays where the link is long.
FIXED_TREES: Final = (
    (2, 2, 4),
    (2, 4, 8),
    (4, 3, 16),
    (4, 5, 16),
    (8, 4, 32),
    (8, 6, 32),
    (16, 6, 64),
)
# The policy chooses the shape of each tree within these limits, so that they may be wider than
# those of a fixed tree. The depth costs a draft step a level, the nodes cost verification.
OPT_TREES: Final = (
    (4, 3, 8),
    (4, 5, 16),
    (4, 8, 16),
    (8, 3, 16),
    (8, 5, 32),
    (8, 8, 32),
    (16, 5, 32),
    (16, 8, 64),
)


@dataclass(frozen=True)
class _Grid:
    """Which shapes of a method are tried, and what tells them apart in a label.

    Attributes:
        shapes: Width, depth, nodes.
        variant: Format of the label's end.
    """

    shapes: Sequence[tuple[int, int, int]]
    variant: str


_ANY_SHAPE: Final = "_w{0.width}_d{0.max_depth}_n{0.node_budget}"
_GRIDS: Final = {
    "chain": _Grid([(1, d, d) for d in CHAIN_LENGTHS], "_d{0.max_depth}"),
    "fixed_tree": _Grid(FIXED_TREES, _ANY_SHAPE),
    "opt_tree": _Grid(OPT_TREES, _ANY_SHAPE),
}
_WAYS: Final = (
    "algorithms.CHAIN_D=auto (chain), tree.FIXED_TREE_WIDTH=auto, tree.FIXED_TREE_DEPTH=auto and "
    "tree.FIXED_TREE_NODES=auto (fixed_tree), tree.OPT_TREE_WIDTH=auto (opt_tree)"
)


def candidates(spec: MethodSpec, config: ExperimentConfig) -> tuple[MethodSpec, ...]:
    """Return the shapes that are tried for a method, the smallest first.

    All are cut to the highest ceilings, and each is there once. The shape that is taken where
    nothing was tuned is among them: on the validation questions, tuning never ends with a worse.

    Args:
        spec: A spec of the configuration with `MethodSpec.tuned`.
        config: The configuration.
    """
    grid = _GRIDS[spec.method]
    wanted = [*grid.shapes, (spec.width, spec.max_depth, spec.node_budget)]
    cut = [
        config.reshaped(spec, width=width, max_depth=depth, node_budget=nodes)
        for width, depth, nodes in wanted
    ]
    found: dict[str, MethodSpec] = {}
    for shape in sorted(cut, key=lambda each: (each.node_budget, each.max_depth, each.width)):
        variant = grid.variant.format(shape)
        concrete = shape.model_copy(update={"variant": variant, "tuned": False})
        found.setdefault(variant, concrete)
    return tuple(found.values())


def tuned_methods(config: ExperimentConfig) -> tuple[MethodSpec, ...]:
    """Return the methods whose shape is to be tuned.

    Raises:
        ConfigError: If there is none, or one does not exist in this version.
    """
    found = tuple(spec for spec in config.methods() if spec.tuned)
    if not found:
        raise ConfigError(
            "There is nothing to tune: no method of the configuration takes a tuned shape. Ask for "
            f"one of these methods, and set its tags to auto: {_WAYS}."
        )
    for spec in found:
        spec.require_available()
    return found
