"""What a round costs beside the models: tree to bytes, socket both ways, walk, commit.

Everything but the models is real: the round loop and link of the client, a loopback WebSocket,
the server's door, conversation and model thread in a process of their own, the verifier and its
key-value cache. The stub target accepts one path of full depth in each round; the arg-max over its
vocabulary counts as model time, since it scales like the output head, and is shown apart. The time
in which the stub draft makes up a tree is subtracted.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final, cast

import _common as common
import _stub_models as stub
import numpy as np
import torch
from _child import child

from autodraft.config import ServerConfig
from autodraft.decoding.stopping import StopRules
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.rounds import Meters, Rounds
from autodraft.engine.service import TargetService
from autodraft.engine.session import Request, Speculative
from autodraft.errors import AutodraftError
from autodraft.models.candidates import best_tokens
from autodraft.policy import FixedTreePolicy, TreeLimits
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import decode_server, encode, pack_nodes, pack_path, unpack_path
from autodraft.records import RoundRecord
from autodraft.transport.client import Link

NODES: Final = 64
MORE_NODES: Final = 128
"""Both trees pass the 256 bytes at which MessagePack's own length prefix grows by a byte."""
DEPTH: Final = 8
PROMPT_TOKENS: Final = 128
ROUNDS_PER_REQUEST: Final = 300
"""Enough for a round number of 3 bytes, the longest that an ordinary answer reaches."""
ROUNDS: Final = 1200
QUICK_ROUNDS: Final = 300
WARMUP_ROUNDS: Final = 50
ARGMAX_REPEATS: Final = 10
HOST: Final = "127.0.0.1"
TOKEN: Final = "round-overhead"


@dataclass(frozen=True)
class Round:
    """One measured round.

    Attributes:
        seconds: From one commit to the next, record included, the stub draft left out.
        record: What the session recorded of it.
    """

    seconds: float
    record: RoundRecord


def run_request(target: RemoteTarget, nodes: int, rounds: int, seed: int) -> list[Round]:
    """Run one answer of ``rounds`` rounds and check that every token is the stub target's.

    Raises:
        CannotMeasure: If the answer is not what plain decoding gives, in that many rounds.
    """
    policy = FixedTreePolicy(TreeLimits(DEPTH, DEPTH, nodes))
    method = Speculative("fixed_tree", Rounds(policy, stub.StubDrafter(seed)))
    prompt = list(range(stub.FIRST_ID, stub.FIRST_ID + PROMPT_TOKENS))
    rules = StopRules(frozenset(), 1 + rounds * (DEPTH + 1))
    request = Request(target, method, prompt, rules, Meters())
    stamps = [time.perf_counter() for _ in request]
    if request.record.output_ids != stub.follow(prompt[-1], rules.max_new_tokens):
        raise common.CannotMeasure("The speculative answer is not the stub target's own.")
    if len(request.rounds) != rounds:
        raise common.CannotMeasure(f"{len(request.rounds)} rounds where {rounds} were due.")
    return [
        Round(after - before - record.draft_s, record)
        for before, after, record in zip(stamps[:-1], stamps[1:], request.rounds, strict=True)
    ]


def run_rounds(target: RemoteTarget, rounds: int, seed: int) -> dict[int, list[Round]]:
    """Run ``rounds`` rounds of each tree size; the sizes take turns, an answer each."""
    measured: dict[int, list[Round]] = {NODES: [], MORE_NODES: []}
    while (left := rounds - len(measured[NODES])) > 0:
        for nodes, done in measured.items():
            done += run_request(target, nodes, min(left, ROUNDS_PER_REQUEST), seed)
        seed += 1
    return measured


async def _serve(channel: Connection) -> None:
    config = ServerConfig(host=HOST, port=0, base_model_path="stub", lazy_load=False)
    service = TargetService(config, TOKEN, stub.load_stub)
    channel.send(await service.start())
    with contextlib.suppress(EOFError):  # the benchmark is gone
        await asyncio.get_running_loop().run_in_executor(None, channel.recv)
    await service.stop()


def serve(channel: Connection) -> None:
    """Be the server process until the channel is closed."""
    asyncio.run(_serve(channel))


def codec_times(seed: int, repeats: int) -> tuple[float, float]:
    """Return the median seconds of tree → bytes and of bytes → verdict, without a socket."""
    policy = FixedTreePolicy(TreeLimits(DEPTH, DEPTH, NODES))
    drafter = stub.StubDrafter(seed)
    drafter.start([stub.FIRST_ID], 1, policy.limits)
    tree = drafter.draft([stub.FIRST_ID], policy, DEPTH, NODES).tree
    path = pack_path(np.arange(1, DEPTH + 1), NODES)
    frame = encode(msg.Verified(1, path, stub.FIRST_ID, 90, 900))
    packing, unpacking = [], []
    for number in range(repeats):
        started = time.perf_counter()
        encode(msg.Verify(number, pack_nodes(tree.tokens[1:], tree.parents[1:])))
        packed = time.perf_counter()
        unpack_path(cast(msg.Verified, decode_server(frame)).path, NODES)
        packing.append(packed - started)
        unpacking.append(time.perf_counter() - packed)
    return statistics.median(packing), statistics.median(unpacking)


def argmax_time() -> float:
    """Return the median seconds of the arg-max that the stub target leaves out."""
    logits = torch.randn((NODES + 1, stub.VOCAB_SIZE)).bfloat16()
    times = []
    for _ in range(ARGMAX_REPEATS):
        started = time.perf_counter()
        best_tokens(logits)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def traffic(measured: dict[int, list[Round]]) -> dict[str, float]:
    """Return bytes per node, header and reply, by the link's own counters: the most in any round.

    Rounds of equal number are compared, so that the slope holds nodes and nothing else.
    """
    few, many = ([r.record.uplink_bytes for r in measured[size]] for size in (NODES, MORE_NODES))
    per_node = max((b - a) / (MORE_NODES - NODES) for a, b in zip(few, many, strict=True))
    return {
        "uplink_bytes_per_node": per_node,
        "uplink_header_bytes": max(few) - per_node * NODES,
        "uplink_bytes": max(few),
        "downlink_bytes": max(r.record.downlink_bytes for r in measured[NODES]),
    }


def _median_ms(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 4)


def split(rounds: Sequence[Round], pings: Sequence[float], seed: int) -> dict[str, float]:
    """Return where a round's time goes, in milliseconds: medians, so only roughly a sum."""
    packing, unpacking = codec_times(seed, len(rounds))
    records = [r.record for r in rounds]
    link = [r.wait_s - r.queue_s - r.verify_s - packing - unpacking for r in records]
    return {
        "encode_ms": round(packing * 1e3, 4),
        "link_ms": _median_ms(link),
        "hand_over_ms": _median_ms([r.queue_s for r in records]),
        "verify_ms": _median_ms([r.verify_s for r in records]),
        "decode_ms": round(unpacking * 1e3, 4),
        "commit_ms": _median_ms([r.seconds - r.record.wait_s for r in rounds]),
        "ping_ms": _median_ms(pings),
        "argmax_ms": round(argmax_time() * 1e3, 4),
    }


WORDS: Final = {
    "encode_ms": "tree to bytes",
    "link_ms": "socket both ways, event loop, the server's codec",
    "hand_over_ms": "wait for the model's thread",
    "verify_ms": f"mask, positions, walk, cache gather ({stub.TARGET_LAYERS} layers)",
    "decode_ms": "reply to path",
    "commit_ms": f"commit, draft's cache gather ({stub.DRAFT_LAYERS} layers), record",
    "ping_ms": "beside it: an empty round trip",
    "argmax_ms": f"left out: arg-max of {NODES + 1} x {stub.VOCAB_SIZE} logits",
}


def report(measured: dict[int, list[Round]], pings: Sequence[float], seed: int) -> None:
    """Print the tables and the closing JSON line."""
    seconds = [r.seconds for r in measured[NODES]]
    times = {
        "median_ms": _median_ms(seconds),
        "p95_ms": round(common.percentile(seconds, 0.95) * 1e3, 4),
        "min_ms": round(min(seconds) * 1e3, 4),
    }
    parts, wire = split(measured[NODES], pings, seed), traffic(measured)
    title = f"one round, {NODES} nodes, depth {DEPTH}"
    common.print_table([title, "ms"], [[name[:-3], f"{ms:.3f}"] for name, ms in times.items()])
    print()
    common.print_table(
        ["where it goes (medians)", "ms"],
        [[WORDS[name], f"{ms:.3f}"] for name, ms in parts.items()],
    )
    print()
    common.print_table(
        ["WebSocket payload", "bytes"], [[name, f"{size:g}"] for name, size in wire.items()]
    )
    settings = {"nodes": NODES, "depth": DEPTH, "rounds": len(seconds), "seed": seed}
    common.print_json("round_overhead", times | wire | parts | settings | common.machine())


def _arguments() -> argparse.Namespace:
    parser = common.parser("Time a loopback round without model time.")
    parser.add_argument("--rounds", type=common.positive, help="rounds per tree size")
    return parser.parse_args()


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure or tokens differ."""
    arguments = _arguments()
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    print(f"{rounds} rounds, client and server in a process each, seed {arguments.seed}")
    print(common.machine_words())
    try:
        # A process of its own, so that both ends have an interpreter lock each.
        with child(serve) as server, Link(HOST, server.first_word(), TOKEN) as link:
            target = RemoteTarget(link, TargetWish("autodraft"))
            run_rounds(target, min(rounds, WARMUP_ROUNDS), arguments.seed)
            measured = run_rounds(target, rounds, arguments.seed)
            pings = [target.ping() for _ in range(rounds)]
    except (AutodraftError, common.CannotMeasure) as error:
        print(f"round_overhead: {error}", file=sys.stderr)
        return 1
    report(measured, pings, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
