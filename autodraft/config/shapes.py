"""Which shapes a method is run with: the lists of a configuration, cut to its ceilings.

A method has one shape for each combination of its lists that differs after the cut. This module
knows no file and no policy that drafts within a shape.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Final, NamedTuple

from autodraft.config.methods import (
    ADAPTIVE,
    CHAIN_D_WHEN_AUTO,
    FIXED_TREE_WHEN_AUTO,
    OPT_TREE_WIDTH_WHEN_AUTO,
    AlgorithmsConfig,
    TreeConfig,
)

_WIDEST_LEVEL: Final = 64
"""Frontier nodes beyond which expanding more of them in one level never pays (autodraft)."""


class Ceiling(NamedTuple):
    """What no tree of a method exceeds."""

    nodes: int
    depth: int


class Shape(NamedTuple):
    """Limits of one method.

    Attributes:
        width: Most frontier nodes expanded in one level.
        depth: Greatest depth of a tree.
        nodes: Most drafted nodes sent in a round.
        tuned: The limits are what is taken where nothing was tuned.
    """

    width: int
    depth: int
    nodes: int
    tuned: bool = False

    def within(self, ceiling: Ceiling) -> "Shape":
        """Return the shape cut to the ceiling; no tree is deeper or wider than it has nodes."""
        nodes = min(self.nodes, ceiling.nodes)
        depth = min(self.depth, ceiling.depth, nodes)
        return self._replace(width=min(self.width, nodes), depth=depth, nodes=nodes)


class Cut(NamedTuple):
    """A value of a list that a ceiling cuts."""

    tag: str
    wanted: int
    most: int
    ceiling: Ceiling


def ceilings(tree: TreeConfig) -> tuple[Ceiling, ...]:
    """Return every combination of PROPOSED_NODES and PROPOSED_MAX_DEPTH."""
    return tuple(Ceiling(*pair) for pair in product(tree.proposed_nodes, tree.proposed_max_depth))


def highest(tree: TreeConfig) -> Ceiling:
    """Return the ceiling within which shapes are tuned."""
    return Ceiling(max(tree.proposed_nodes), max(tree.proposed_max_depth))


def shapes_of(
    method: str, algorithms: AlgorithmsConfig, tree: TreeConfig
) -> tuple[tuple[Shape, str], ...]:
    """Return the different shapes of a method, each with what tells it apart in a label.

    Args:
        method: Method id, without its placement.
        algorithms: Holds the lengths of the chain.
        tree: Holds the lists of the trees, and the ceilings.

    Returns:
        In the order of the lists, the ceilings varying slowest. The text is empty where there is
        one shape only, else it names what varies: ``_d2``, ``_w8_n32``.
    """
    found = tuple(dict.fromkeys(_SHAPES[method](algorithms, tree)))
    # Autodraft's width follows from its nodes.
    letters = [name for name in _telling(found) if name != "width" or method != ADAPTIVE]
    return tuple(
        (shape, "".join(f"_{name[0]}{getattr(shape, name)}" for name in letters)) for shape in found
    )


def fixed_within(shape: Shape, tree: TreeConfig) -> tuple[int, int, int]:
    """Return width, depth and nodes of the first fixed tree, each cut to a limit of a shape.

    Each by itself, because an ablation of autodraft holds only one of them fixed.
    """
    lists = (tree.fixed_tree_width, tree.fixed_tree_depth, tree.fixed_tree_nodes)
    width, depth, nodes = (
        values[0] if values else usual
        for values, usual in zip(lists, FIXED_TREE_WHEN_AUTO, strict=True)
    )
    return min(width, shape.width), min(depth, shape.depth), min(nodes, shape.nodes)


def cuts(methods: Iterable[str], algorithms: AlgorithmsConfig, tree: TreeConfig) -> tuple[Cut, ...]:
    """Return which values of the lists the ceilings cut, for the methods that are asked for."""
    found: dict[tuple[str, int, int], Cut] = {}
    for method in methods:
        for cut in _CUTS[method](algorithms, tree) if method in _CUTS else ():
            if cut.wanted > cut.most:
                found.setdefault(cut[:3], cut)
    return tuple(found.values())


def _telling(shapes: tuple[Shape, ...]) -> list[str]:
    """Return the fields that vary among shapes; of two that never differ, the first."""
    columns: dict[str, tuple[int, ...]] = {}
    for name in ("depth", "nodes", "width"):
        column = tuple(int(getattr(shape, name)) for shape in shapes)
        if len(set(column)) > 1 and column not in columns.values():
            columns[name] = column
    return [name for name in ("width", "depth", "nodes") if name in columns]


def _chains(algorithms: AlgorithmsConfig, tree: TreeConfig) -> Iterator[Shape]:
    if algorithms.chain_d is None:
        d = CHAIN_D_WHEN_AUTO
        yield Shape(1, d, d, tuned=True).within(highest(tree))
        return
    for longest in _longest_chains(tree):
        for d in algorithms.chain_d:
            yield Shape(1, min(d, longest), min(d, longest))


def _longest_chains(tree: TreeConfig) -> tuple[int, ...]:
    return tuple(dict.fromkeys(min(ceiling) for ceiling in ceilings(tree)))


def _fixed_trees(_: AlgorithmsConfig, tree: TreeConfig) -> Iterator[Shape]:
    if tree.fixed_tree_width is None:
        yield Shape(*FIXED_TREE_WHEN_AUTO, tuned=True).within(highest(tree))
        return
    for ceiling in ceilings(tree):
        for wanted in _wanted_fixed_trees(tree):
            yield wanted.within(ceiling)


def _wanted_fixed_trees(tree: TreeConfig) -> Iterator[Shape]:
    lists = (tree.fixed_tree_width, tree.fixed_tree_depth, tree.fixed_tree_nodes)
    for width, depth, nodes in product(*(values or () for values in lists)):
        yield Shape(width, depth, nodes)


def _opt_trees(_: AlgorithmsConfig, tree: TreeConfig) -> Iterator[Shape]:
    if tree.opt_tree_width is None:
        nodes, depth = highest(tree)
        yield Shape(OPT_TREE_WIDTH_WHEN_AUTO, depth, nodes, tuned=True).within(highest(tree))
        return
    for nodes, depth in ceilings(tree):
        for width in tree.opt_tree_width:
            yield Shape(width, depth, nodes).within(Ceiling(nodes, depth))


def _autodraft(_: AlgorithmsConfig, tree: TreeConfig) -> Iterator[Shape]:
    return (Shape(_WIDEST_LEVEL, top.depth, top.nodes).within(top) for top in ceilings(tree))


def _lookup(_: AlgorithmsConfig, tree: TreeConfig) -> Iterator[Shape]:
    return (Shape(0, top.depth, top.nodes).within(top) for top in ceilings(tree))


def _server_only(_: AlgorithmsConfig, __: TreeConfig) -> Iterator[Shape]:
    yield Shape(0, 0, 0)


def _chain_cuts(algorithms: AlgorithmsConfig, tree: TreeConfig) -> Iterator[Cut]:
    for ceiling in ceilings(tree):
        for d in algorithms.chain_d or ():
            yield Cut("CHAIN_D", d, min(ceiling), ceiling)


def _fixed_tree_cuts(_: AlgorithmsConfig, tree: TreeConfig) -> Iterator[Cut]:
    for ceiling in ceilings(tree):
        for wanted in _wanted_fixed_trees(tree):
            cut = wanted.within(ceiling)
            yield Cut("FIXED_TREE_WIDTH", wanted.width, cut.width, ceiling)
            yield Cut("FIXED_TREE_DEPTH", wanted.depth, cut.depth, ceiling)
            yield Cut("FIXED_TREE_NODES", wanted.nodes, cut.nodes, ceiling)


def _opt_tree_cuts(_: AlgorithmsConfig, tree: TreeConfig) -> Iterator[Cut]:
    for ceiling in ceilings(tree):
        for width in tree.opt_tree_width or ():
            yield Cut("OPT_TREE_WIDTH", width, ceiling.nodes, ceiling)


_SHAPES: Final[dict[str, Callable[[AlgorithmsConfig, TreeConfig], Iterator[Shape]]]] = {
    "server_only": _server_only,
    "chain": _chains,
    "fixed_tree": _fixed_trees,
    "opt_tree": _opt_trees,
    "autodraft": _autodraft,
    "lookup": _lookup,
}
_CUTS: Final[dict[str, Callable[[AlgorithmsConfig, TreeConfig], Iterator[Cut]]]] = {
    "chain": _chain_cuts,
    "fixed_tree": _fixed_tree_cuts,
    "opt_tree": _opt_tree_cuts,
}
