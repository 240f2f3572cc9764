"""What the controller's own decisions cost, for trees of up to 150 nodes.

No model and no link: latency tables with the steps of the embedded pair, and grown trees with drawn
probabilities. Each decision is timed by itself, on one tree after another.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import _common as common
import numpy as np

from autodraft.cost import Phases, Powers, Prices, blend, phase_units
from autodraft.policy import TreeLimits
from autodraft.policy.adaptive import AdaptivePolicy, PairKnowledge
from autodraft.policy.calibration import Calibration
from autodraft.policy.costs import Latencies
from autodraft.policy.forecast import CHILDREN, ChildForecast, GainTable
from autodraft.policy.survey import DEPTH, WIDTHS
from autodraft.profiling.correction import CorrectedTable
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.tables import LatencyTable
from autodraft.tree.draft_tree import FloatArray, IntArray
from autodraft.tree.growth import TreeGrowth
from autodraft.units import MS_PER_S

NODES: Final = 150
LIMITS: Final = TreeLimits(width=64, max_depth=15, node_budget=NODES)
LEVELS: Final = 4
WIDTH: Final = 8
"""Four levels of 1 and three times 8 expanded nodes with 8 children each: 200 nodes to cut from."""
TREES: Final = 20
REPEATS: Final = 3_000
QUICK_REPEATS: Final = 500
WARMUPS: Final = 50
CONTEXT: Final = 256
ANSWER: Final = 128
PARTS: Final = {
    "width": "width of one more level",
    "num_nodes": f"nodes to send, of up to {NODES}",
    "value": f"chances of {WIDTH} × {CHILDREN} candidates",
    "start": "forecast at the start of a request",
    "decision": "one width and the nodes to send",
}
WANTED_MS: Final = 0.3

_SIZES: Final = (1, 8, 32, 40, 64, 128, 256)
_PADDING: Final = (*_SIZES, 512)
_TARGET_S: Final = (0.0289, 0.0327, 0.0427, 0.0451, 0.0610, 0.0790, 0.1200)
_DRAFT_S: Final = (0.0043, 0.0045, 0.0058, 0.0062, 0.0085, 0.0115, 0.0170)
"""What the embedded pair takes on two cores, about."""


class Tree(NamedTuple):
    """A grown tree, and the candidates of the level that would come next.

    Attributes:
        growth: The tree.
        expanded: Nodes of its newest level, [W].
        tokens: Candidates of each, [W, K].
        log_probs: Their log-probabilities, [W, K].
    """

    growth: TreeGrowth
    expanded: IntArray
    tokens: IntArray
    log_probs: FloatArray


def grow(rng: np.random.Generator) -> Tree:
    """Grow a tree of 200 nodes with drawn probabilities, some texts being easier than others."""
    growth, spread = TreeGrowth(1), rng.uniform(0.1, 0.5)
    for level in range(LEVELS + 1):
        expanded = growth.frontier(WIDTH if level else 1)
        tokens = rng.integers(0, 50_000, (len(expanded), CHILDREN))
        chances = rng.dirichlet(np.full(CHILDREN, spread), len(expanded))
        log_probs = np.log(-np.sort(-chances) + 1e-6)
        if level < LEVELS:
            growth.add_level(expanded, tokens, log_probs)
    return Tree(growth, expanded, tokens, log_probs)


def make_policy() -> AdaptivePolicy:
    """Return a policy for the embedded pair, as a survey would have it."""
    draft, target = (
        CorrectedTable(LatencyTable(_SIZES, [128], [seconds], _PADDING))
        for seconds in (_DRAFT_S, _TARGET_S)
    )
    # Gains as a tree has them: ever less from each further level, width and node.
    depths, widths = np.arange(1, DEPTH + 1), np.array(WIDTHS)
    most = 3.0 * (1 - 0.6**depths)[:, None, None] * (1 - 0.5 * 0.7**widths)[:, None]
    gains = most * (1 - 0.9 ** np.arange(NODES + 1))
    ease = np.linspace(0.6, 1.6, 8)
    pair = PairKnowledge(
        Latencies(draft, target, LinkEstimate(0.005)),
        Calibration(),
        ChildForecast(),
        GainTable(widths, gains, ease),
    )
    policy = AdaptivePolicy(LIMITS, _phases(), pair)
    policy.start(CONTEXT, ANSWER)
    return policy


def _phases() -> Phases:
    prices = Prices(
        target_per_hour_usd=1.0,
        electricity_usd_per_kwh=0.2,
        uplink_usd_per_gb=0.01,
        downlink_usd_per_gb=0.1,
    )
    powers = Powers(draft_watts=30, draft_idle_watts=10, target_watts=300, target_idle_watts=100)
    units = phase_units("total_cost", prices, "busy", powers)
    tau_s = _TARGET_S[0]
    return blend(units, 0.5, tau_s, units.server_only_s * tau_s)


def measure(repeats: int, seed: int) -> dict[str, list[float]]:
    """Return the seconds of each part, call by call; ``decision`` is the sum of one pair."""
    rng = np.random.default_rng(seed)
    policy, trees = make_policy(), [grow(rng) for _ in range(TREES)]
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    for number in range(-WARMUPS, repeats):
        growth, *level = trees[number % TREES]
        took = {"start": _seconds(policy.start, CONTEXT, ANSWER)}
        policy.begin(CONTEXT, np.empty(0))
        took["width"] = _seconds(policy.width, growth)
        took["value"] = _seconds(policy.value, growth, *level)
        took["num_nodes"] = _seconds(policy.num_nodes, growth)
        took["decision"] = took["width"] + took["num_nodes"]
        if number >= 0:
            for name, seconds in took.items():
                found[name].append(seconds)
    return found


def _seconds(call: Callable[..., Any], *arguments: Any) -> float:
    started = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - started


def report(found: Mapping[str, Sequence[float]], seed: int) -> None:
    """Print the table and the closing JSON line: medians, and what 95 % do not exceed."""
    figures = {}
    for name, seconds in found.items():
        figures[f"{name}_ms"] = round(statistics.median(seconds) * MS_PER_S, 4)
        figures[f"{name}_p95_ms"] = round(common.percentile(seconds, 0.95) * MS_PER_S, 4)
    common.print_table(
        ["decision", "median ms", "p95 ms"],
        [
            [words, f"{figures[f'{name}_ms']:.3f}", f"{figures[f'{name}_p95_ms']:.3f}"]
            for name, words in PARTS.items()
        ],
    )
    settings = {"nodes": NODES, "repeats": len(found["decision"]), "seed": seed}
    common.print_json("decision", figures | settings | common.machine())


def _arguments() -> argparse.Namespace:
    parser = common.parser("Time the controller's decisions.")
    parser.add_argument("--repeats", type=common.positive, help=f"default {REPEATS}")
    return parser.parse_args()


def main() -> int:
    """Run the benchmark; the exit code is 0."""
    arguments = _arguments()
    repeats = arguments.repeats or (QUICK_REPEATS if arguments.quick else REPEATS)
    print(f"{repeats} times, {TREES} trees; wanted: decision_ms <= {WANTED_MS:g}")
    print(common.machine_words())
    gc.disable()  # its pauses are no decision's
    report(measure(repeats, arguments.seed), arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
