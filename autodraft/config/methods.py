"""The blocks that say how an experiment decodes: methods, trees, sampling, amounts.

One immutable class for each block; the one place for its defaults. Of a method this module knows
the name only, and it knows no files.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final

from autodraft.config.base import Block
from autodraft.config.knob import Choice, Each, Flag, Number, OrWord, Whole, knob

DEFAULT_MAX_NEW_TOKENS: Final = 256

METHOD_IDS: Final = ("server_only", "chain", "fixed_tree", "opt_tree", "autodraft", "lookup")
ADAPTIVE: Final = "autodraft"
AT_SERVER: Final = "@server"
METHOD_NAMES: Final = METHOD_IDS + tuple(name + AT_SERVER for name in METHOD_IDS[1:])
WITH_DRAFT_MODEL: Final = {  # method -> what its label ends with where it retrieves as well
    "chain": "+retrieval",
    "fixed_tree": "+retrieval",
    "opt_tree": "+retrieval",
    "autodraft": "",  # retrieval is part of it
}

ABLATION_MODES: Final = (
    "full",
    "no_proactive",
    "adaptive_only",
    "no_depth",
    "no_width",
    "no_nodes",
    "no_calibration",
    "no_retrieval",
)
MAX_NODES: Final = 65_535  # a parent index is at most two bytes on the wire
MAX_DEPTH: Final = 1_024
MAX_TEMPERATURE: Final = 100.0  # as decoding.sampling has it
MOST_SHAPES: Final = 1_000
CHAIN_D_WHEN_AUTO: Final = 4
FIXED_TREE_WHEN_AUTO: Final = (8, 6, 32)  # width, depth, nodes
OPT_TREE_WIDTH_WHEN_AUTO: Final = 16
_PROFILE_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 150)

_SIZE = Whole(1, MAX_NODES)
_DEPTH = Whole(1, MAX_DEPTH)
_SIZES = OrWord("auto", Each(_SIZE))
_DEPTHS = OrWord("auto", Each(_DEPTH))
_SWITCH = Flag()


def _method_switch(tag: str, meaning: str) -> Any:
    return knob(tag, _SWITCH, meaning)


class AlgorithmsConfig(Block):
    """The methods that are compared."""

    enable_hybrid_autodraft: Annotated[
        bool,
        _method_switch(
            "ENABLE_HYBRID_AUTODRAFT",
            "`autodraft`: draft at the user, target in the cloud, adaptive (hybrid = distributed).",
        ),
    ] = True
    enable_hybrid_non_tree_sd: Annotated[
        bool,
        _method_switch("ENABLE_HYBRID_NON_TREE_SD", "`chain`: a chain of d tokens, distributed."),
    ] = False
    enable_hybrid_fixed_tree: Annotated[
        bool,
        _method_switch("ENABLE_HYBRID_FIXED_TREE", "`fixed_tree`: a tree of one fixed shape."),
    ] = False
    enable_hybrid_opt_tree: Annotated[
        bool,
        _method_switch("ENABLE_HYBRID_OPT_TREE", "`opt_tree`: adaptive shape, fixed limits."),
    ] = False
    enable_server_only_ar: Annotated[
        bool,
        _method_switch(
            "ENABLE_SERVER_ONLY_AR", "`server_only`: plain decoding on the server, streamed."
        ),
    ] = False
    enable_server_only_non_tree_sd: Annotated[
        bool,
        _method_switch("ENABLE_SERVER_ONLY_NON_TREE_SD", "`chain@server`: chain, co-located."),
    ] = False
    enable_server_only_opt_tree: Annotated[
        bool,
        _method_switch("ENABLE_SERVER_ONLY_OPT_TREE", "`opt_tree@server`: opt_tree, co-located."),
    ] = False
    enable_server_only_autodraft: Annotated[
        bool,
        _method_switch(
            "ENABLE_SERVER_ONLY_AUTODRAFT", "`autodraft@server`: autodraft, co-located."
        ),
    ] = False
    autodraft_ablation_modes: Annotated[
        tuple[str, ...],
        knob(
            "AUTODRAFT_ABLATION_MODES_CSV",
            Each(Choice(ABLATION_MODES)),
            "Variants of autodraft that are run, each with a part left out.",
        ),
    ] = ("full",)
    enable_lookup: Annotated[
        bool,
        _method_switch("ENABLE_LOOKUP", "`lookup`: retrieval drafting alone, no draft model."),
    ] = False
    method_names: Annotated[
        tuple[str, ...] | None,
        knob(
            "METHODS_CSV",
            OrWord("unset", Each(Choice(METHOD_NAMES))),
            "The methods in one line, run in this order; overrides the ENABLE_* switches above.",
        ),
    ] = None
    enable_proactive: Annotated[
        bool | None,
        knob(
            "ENABLE_PROACTIVE",
            OrWord("auto", _SWITCH),
            "Draft ahead while a verify is in flight; `auto`: 1, and 0 in the modes `no_proactive` "
            "and `adaptive_only`.",
        ),
    ] = None
    retrieval_draft: Annotated[
        bool,
        knob(
            "RETRIEVAL_DRAFT",
            _SWITCH,
            "Graft retrieved continuations into autodraft's tree.",
        ),
    ] = True
    enable_handover: Annotated[
        bool,
        knob(
            "ENABLE_HANDOVER",
            _SWITCH,
            "Let the server decode alone where speculation loses (autodraft).",
        ),
    ] = True
    exact: Annotated[
        bool | None,
        knob(
            "EXACT",
            OrWord("auto", _SWITCH),
            "Narrow the gap that rounding leaves between speculative and server-only output; "
            "`auto`: on below float32 where it costs under 3 %.",
        ),
    ] = None
    chain_d: Annotated[
        tuple[int, ...] | None,
        knob(
            "CHAIN_D",
            OrWord("auto", Each(_DEPTH)),
            "Lengths d of the chain, one method for each; `auto`: what `python -m evaluation tune` "
            "chose on validation questions, else 4.",
            unit="tokens",
        ),
    ] = None


class TreeConfig(Block):
    """Limits of the draft trees, and how their costs are profiled."""

    proposed_nodes: Annotated[
        tuple[int, ...],
        knob(
            "PROPOSED_NODES",
            Each(_SIZE),
            "Most drafted nodes sent to the target in a round; a ceiling for every method. A list "
            "sweeps.",
            unit="nodes",
        ),
    ] = (150,)
    proposed_max_depth: Annotated[
        tuple[int, ...],
        knob(
            "PROPOSED_MAX_DEPTH",
            Each(_DEPTH),
            "Greatest depth of a tree (the root has 0); a ceiling for every method. A list sweeps.",
            unit="levels",
        ),
    ] = (15,)
    fixed_tree_width: Annotated[
        tuple[int, ...] | None,
        knob(
            "FIXED_TREE_WIDTH",
            _SIZES,
            "Frontier nodes that fixed_tree expands in one level. A list sweeps; `auto` (in all "
            "three FIXED_TREE_* tags): as tuned, else 8, 6 and 32.",
            unit="nodes",
        ),
    ] = FIXED_TREE_WHEN_AUTO[:1]
    fixed_tree_depth: Annotated[
        tuple[int, ...] | None,
        knob(
            "FIXED_TREE_DEPTH",
            _DEPTHS,
            "Depth of fixed_tree's tree. A list sweeps; `auto`: as tuned.",
            unit="levels",
        ),
    ] = FIXED_TREE_WHEN_AUTO[1:2]
    fixed_tree_nodes: Annotated[
        tuple[int, ...] | None,
        knob(
            "FIXED_TREE_NODES",
            _SIZES,
            "Nodes that fixed_tree sends. A list sweeps; `auto`: as tuned.",
            unit="nodes",
        ),
    ] = FIXED_TREE_WHEN_AUTO[2:]
    opt_tree_width: Annotated[
        tuple[int, ...] | None,
        knob(
            "OPT_TREE_WIDTH",
            _SIZES,
            "Most frontier nodes that opt_tree expands in one level. A list sweeps; `auto`: width, "
            "depth and nodes as tuned within the ceilings, else 16 and the ceilings.",
            unit="nodes",
        ),
    ] = (OPT_TREE_WIDTH_WHEN_AUTO,)
    draft_profile_width_list: Annotated[
        tuple[int, ...],
        knob(
            "DRAFT_PROFILE_WIDTH_LIST",
            Each(_SIZE),
            "Widths at which a draft step is timed; values between are interpolated.",
            unit="nodes",
        ),
    ] = _PROFILE_SIZES
    target_profile_node_list: Annotated[
        tuple[int, ...],
        knob(
            "TARGET_PROFILE_NODE_LIST",
            Each(_SIZE),
            "Node counts at which a verify is timed; values between are interpolated.",
            unit="nodes",
        ),
    ] = _PROFILE_SIZES
    draft_profile_model_calls_per_count: Annotated[
        int,
        knob(
            "DRAFT_PROFILE_MODEL_CALLS_PER_COUNT",
            Whole(1, 1_000_000),
            "Timed forwards of the draft for each entry.",
            unit="forwards",
        ),
    ] = 10
    target_profile_model_calls_per_count: Annotated[
        int,
        knob(
            "TARGET_PROFILE_MODEL_CALLS_PER_COUNT",
            Whole(1, 1_000_000),
            "Timed forwards of the target for each entry.",
            unit="forwards",
        ),
    ] = 10
    force_profile_refresh: Annotated[
        bool,
        knob("FORCE_PROFILE_REFRESH", _SWITCH, "Measure again what is on disk."),
    ] = False
    disable_online_profile_update: Annotated[
        bool,
        knob(
            "DISABLE_ONLINE_PROFILE_UPDATE",
            _SWITCH,
            "Do not correct the profiles from served rounds.",
        ),
    ] = False
    disable_auto_profile: Annotated[
        bool,
        knob("DISABLE_AUTO_PROFILE", _SWITCH, "Do not measure a profile that is missing."),
    ] = False

    @classmethod
    def conflicts(cls, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return what is wrong between the lists: half an `auto`, or too many shapes."""
        found = []
        shape = ("fixed_tree_width", "fixed_tree_depth", "fixed_tree_nodes")
        autos = [name for name in shape if values[name] is None]
        if autos and len(autos) < len(shape):
            missing = ", ".join(name.upper() for name in shape if name not in autos)
            found.append(
                (
                    autos[0],
                    f"{autos[0].upper()}=auto needs the whole shape tuned: set {missing} to auto "
                    "too, or give numbers to all three.",
                )
            )
        lists = ("proposed_nodes", "proposed_max_depth", *shape, "opt_tree_width")
        count = math.prod(len(values[name] or (None,)) for name in lists)
        if count > MOST_SHAPES:
            longest = max(lists, key=lambda name: len(values[name] or ()))
            found.append(
                (
                    longest,
                    f"the lists of the block tree have {count} combinations, and at most "
                    f"{MOST_SHAPES} are swept in one experiment. Shorten {longest.upper()} first.",
                )
            )
        return found


class SamplingConfig(Block):
    """How a token is drawn from the target's distribution."""

    temperature: Annotated[
        float,
        knob(
            "TEMPERATURE",
            Number(0, MAX_TEMPERATURE),
            "0 is greedy: the likeliest token. Above, logits are divided by it and a token is "
            "drawn.",
        ),
    ] = 0.0
    top_p: Annotated[
        float,
        knob(
            "TOP_P",
            Number(0, 1, above=True),
            "Least probability mass that stays; 1 is all. No effect on greedy.",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        knob(
            "TOP_K",
            Whole(0, 2**31 - 1),
            "Most tokens that stay; 0 is all. No effect on greedy.",
            unit="tokens",
        ),
    ] = 0
    seeds: Annotated[
        tuple[int, ...],
        knob(
            "SEED",
            Each(Whole(0, 2**32 - 1)),
            "Seed of the draws. A list sweeps. No effect on greedy, which runs the first only.",
        ),
    ] = (4,)
    num_choices: Annotated[
        int,
        knob(
            "NUM_CHOICES",
            Whole(1, 1_000),
            "Answers to each question with each seed, each drawn anew. Greedy has one only.",
        ),
    ] = 1


class RunConfig(Block):
    """How much is run."""

    max_new_tokens: Annotated[
        int,
        knob("MAX_NEW_TOKENS", Whole(1, 1_000_000), "Most tokens of one answer.", unit="tokens"),
    ] = DEFAULT_MAX_NEW_TOKENS
    repeats: Annotated[
        int, knob("REPEATS", Whole(1, 10_000), "Times that everything is asked.", unit="times")
    ] = 1
    warmup_questions: Annotated[
        int,
        knob(
            "WARMUP_QUESTIONS",
            Whole(0, 10_000),
            "Questions that each method answers first, unrecorded.",
            unit="questions",
        ),
    ] = 1
    retries: Annotated[
        int,
        knob(
            "RETRIES",
            Whole(0, 1_000),
            "Attempts after the first where the link to the server is lost.",
            unit="attempts",
        ),
    ] = 5
    save_trace: Annotated[
        bool,
        knob(
            "SAVE_TRACE",
            _SWITCH,
            "Write `trace.jsonl`: the draft's 16 best candidates at every place of the reference "
            "method's answers, for the simulator.",
        ),
    ] = False
    dry_run: Annotated[bool, knob("DRY_RUN", _SWITCH, "Show the plan and stop.")] = False
