"""The command line: ``autodraft target | generate | profile | doctor``.

Parses, calls the library, prints. The only module of the library that prints or reads argv.
Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted.
"""

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autodraft import __version__
from autodraft.config import (
    ADAPTIVE,
    AVAILABLE_METHODS,
    DEFAULT_HOST,
    DEFAULT_MAX_NEW_TOKENS,
    DEFAULT_METHOD,
    DEFAULT_PORT,
    DEFAULT_SERVER_NAME,
    DTYPES,
    METHOD_NAMES,
    QUANTIZATIONS,
    ServerConfig,
)
from autodraft.decoding.sampling import GREEDY, Sampling
from autodraft.decoding.wish import MAX_TOP_LOGPROBS
from autodraft.errors import AutodraftError, ConfigError
from autodraft.protocol.messages import MAX_STOP_LENGTH, MAX_STOP_STRINGS, stop_strings_fit
from autodraft.records import GenerationResult, RequestRecord, TokenScore
from autodraft.units import MS_PER_S

if TYPE_CHECKING:
    from autodraft.api import Autodraft
    from autodraft.simulate import Devices

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

_DEFAULTS: Final = ServerConfig()
_EXACT: Final = {"auto": None, "0": False, "1": True}
_LIMITS: Final = {
    "min_tokens_per_s": "at least so many tokens a second",
    "max_cost_per_1m_tokens": "at most so many dollars per million tokens",
    "max_tpot_ms": "at most so many ms per later token",
    "max_ttft_ms": "at most so many ms to the first token",
}
_SAMPLING: Final = {
    "temperature": "0 takes the likeliest token; above, tokens are drawn",
    "top_k": "draw among so many of the likeliest; 0 is all",
    "top_p": "draw among the likeliest that hold so much of the probability; 1 is all",
    "min_p": "draw among those at least so many times as likely as the likeliest; 0 is all",
    "seed": "the same prompt and seed give the same answer",
    "repetition_penalty": "makes tokens of prompt and answer less likely; 1 is none",
    "presence_penalty": "taken off the logit of every token in the answer",
    "frequency_penalty": "the same, once for each time that it is there",
    "min_new_tokens": "no end before the answer has so many tokens",
}
"""What the options of ``Sampling`` do; the page on losslessness defines them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("websockets").setLevel(logging.WARNING)
    try:
        code: int = arguments.command(arguments)
    except ConfigError as error:
        return _fail(error, EXIT_USAGE)
    except AutodraftError as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def _fail(error: AutodraftError, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autodraft", description="User-cloud distributed speculative decoding."
    )
    parser.add_argument("--version", action="version", version=f"autodraft {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_target(commands.add_parser("target", help="run a target server"))
    _add_generate(commands.add_parser("generate", help="answer one prompt"))
    _add_profile(commands.add_parser("profile", help="time both models and the link"))
    _add_doctor(commands.add_parser("doctor", help="show what is installed and what is missing"))
    return parser


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run a target server until it is interrupted."
    add = parser.add_argument
    add("--host", default=_DEFAULTS.host, help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=_DEFAULTS.port, help="port; 0 is a free one (%(default)s)")
    add("--server-name", default=_DEFAULTS.server_name, help="name clients expect (%(default)s)")
    add("--device-map", default=_DEFAULTS.device_map, help="device of the target (%(default)s)")
    add("--base-model-path", metavar="MODEL", help="target model; without it a client chooses")
    add(
        "--draft-model-path",
        metavar="MODEL",
        help="draft model of co-located methods (chain@server); without it a client chooses one "
        "under lazy load",
    )
    add("--draft-quantization", choices=QUANTIZATIONS, default=_DEFAULTS.draft_quantization)
    add("--draft-dtype", choices=DTYPES, default=_DEFAULTS.draft_dtype)
    _add_loading(parser)
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--quantization", choices=QUANTIZATIONS, default=None)
    for bits in ("8bit", "4bit"):
        precision.add_argument(
            f"--load-in-{bits}", dest="quantization", action="store_const", const=bits
        )
    add("--dtype", choices=DTYPES, default=_DEFAULTS.dtype, help="floating-point type")
    add(
        "--compile",
        action="store_true",
        help="compile the forwards, once per shape: slow at first, for long runs on a GPU",
    )
    add("--max-context", type=int, help="most tokens of prompt and answer (default: the model's)")
    add("--hf-token", help="Hugging Face token for gated models (better: HF_TOKEN)")
    add("--allow-pickle", action="store_true", help="load pickled weights too (unsafe)")
    add("--allow-anonymous", action="store_true", help="let clients in without the token")
    parser.set_defaults(command=_target)


def _add_loading(parser: argparse.ArgumentParser) -> None:
    """Add the options that say when models are loaded, and whether they are timed then."""
    loading = parser.add_mutually_exclusive_group()
    loading.add_argument(
        "--lazy-load",
        action="store_true",
        default=None,
        help="load when a client asks, and what it asks for (default without --base-model-path)",
    )
    loading.add_argument(
        "--eager-load",
        dest="lazy_load",
        action="store_false",
        help="load at the start and nothing else (default with --base-model-path)",
    )
    profile = parser.add_mutually_exclusive_group()
    profile.add_argument(
        "--enable-auto-target-profile",
        dest="auto_target_profile",
        action="store_true",
        default=_DEFAULTS.auto_target_profile,
        help="time the target when it is loaded, keep that, and tell clients",
    )
    profile.add_argument(
        "--disable-auto-target-profile",
        dest="auto_target_profile",
        action="store_false",
        help="leave that to each client (default)",
    )


def _target(arguments: argparse.Namespace) -> int:
    from autodraft.api import serve_target
    from autodraft.profiling.store import FOLDER
    from autodraft.settings import data_dir

    lazy = arguments.lazy_load
    serve_target(
        arguments.host,
        arguments.port,
        arguments.server_name,
        arguments.hf_token,
        on_ready=lambda line: print(line, flush=True),
        base_model_path=arguments.base_model_path,
        draft_model_path=arguments.draft_model_path,
        draft_quantization=arguments.draft_quantization,
        draft_dtype=arguments.draft_dtype,
        quantization=arguments.quantization or _DEFAULTS.quantization,
        dtype=arguments.dtype,
        device_map=arguments.device_map,
        lazy_load=arguments.base_model_path is None if lazy is None else lazy,
        allow_pickle=arguments.allow_pickle,
        allow_anonymous=arguments.allow_anonymous,
        compile=arguments.compile,
        max_context=arguments.max_context,
        auto_target_profile=arguments.auto_target_profile,
        profile_dir=data_dir() / FOLDER,
    )
    return 0


def _add_pair(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which two models, and where."""
    add = parser.add_argument
    add("--target-model", required=True, metavar="MODEL")
    add("--draft-model", required=True, metavar="MODEL")
    add("--target-host", default=DEFAULT_HOST, help="the target server (%(default)s)")
    add("--target-port", type=int, default=DEFAULT_PORT, help="its port (%(default)s)")
    add("--server-name", default=DEFAULT_SERVER_NAME, help="its name (%(default)s)")
    add("--device-map", default="auto", help="device of the draft (%(default)s)")
    add("--dtype", choices=DTYPES, default="auto")
    add("--draft-quantization", choices=QUANTIZATIONS, default="none")
    add("--target-quantization", choices=QUANTIZATIONS, help="default: the server's")


def _engine(arguments: argparse.Namespace) -> "Autodraft":
    from autodraft.api import Autodraft

    return Autodraft(
        draft_model=arguments.draft_model,
        target_model=arguments.target_model,
        draft_quantization=arguments.draft_quantization,
        target_quantization=arguments.target_quantization,
        target_host=arguments.target_host,
        target_port=arguments.target_port,
        server_name=arguments.server_name,
        device_map=arguments.device_map,
        dtype=arguments.dtype,
    )


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.description = "Answer one prompt; the text goes to stdout, the figures to stderr."
    add = parser.add_argument
    add("prompt", help="the user's turn; - reads it from standard input")
    _add_pair(parser)
    names = [name for name in METHOD_NAMES if name in AVAILABLE_METHODS]
    add(
        "--method", default=DEFAULT_METHOD, help=f"one of {', '.join(names)} (default: %(default)s)"
    )
    _add_adapting(parser)
    add("--max-new-tokens", type=int, default=DEFAULT_MAX_NEW_TOKENS)
    _add_choosing(parser)
    add("--json", action="store_true", help="print the whole record as one JSON line instead")
    parser.set_defaults(command=_generate)


def _add_adapting(parser: argparse.ArgumentParser) -> None:
    """Add the options that only autodraft takes."""
    add = parser.add_argument
    add(
        "--cs",
        type=_sensitivity,
        metavar="CS",
        help="cost sensitivity of autodraft: 0 (speed first) … 1 (cost first), or tps, balanced, "
        "cost",
    )
    add("--proactive", action="store_true", help="autodraft: draft ahead while the target verifies")
    for name, text in _LIMITS.items():
        option = f"--{name.replace('_', '-')}"
        add(option, metavar="X", type=float, help=f"autodraft: {text}, held on average")


def _sensitivity(text: str) -> float:
    from autodraft.api.asking import sensitivity

    try:
        return float(text) if text[:1].isdigit() or text[:1] in "+-." else sensitivity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _limits(arguments: argparse.Namespace) -> dict[str, float] | None:
    given = {name: getattr(arguments, name) for name in _LIMITS}
    return {name: value for name, value in given.items() if value is not None} or None


def _add_choosing(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how tokens are chosen, and where the answer ends besides."""
    add = parser.add_argument
    for name, text in _SAMPLING.items():
        default = getattr(GREEDY, name)
        option = f"--{name.replace('_', '-')}"
        add(option, type=type(default), default=default, help=f"{text} (%(default)s)")
    add(
        "--exact",
        choices=_EXACT,
        default="auto",
        help="decide close tokens again, so that rounding below float32 shows less; auto: where "
        "the server finds it worth its time (%(default)s)",
    )
    add(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="end the answer before this text; may be given several times",
    )
    add(
        "--logprobs",
        metavar="N",
        type=int,
        help="show every token's log-probability, and those of the N likeliest in its place",
    )


def _generate(arguments: argparse.Namespace) -> int:
    _require_limits(arguments)
    sampling = Sampling(**{name: getattr(arguments, name) for name in _SAMPLING})
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    if not prompt.strip():
        raise ConfigError("The prompt is empty. Give a text, or - and a text on standard input.")
    show: Callable[[str], None] = (
        (lambda piece: None) if arguments.json else (lambda piece: print(piece, end="", flush=True))
    )
    results: list[GenerationResult] = []
    with _engine(arguments) as engine:
        for piece in engine.stream(
            prompt,
            method=arguments.method,
            cs=arguments.cs,
            proactive=arguments.proactive,
            slo=_limits(arguments),
            max_new_tokens=arguments.max_new_tokens,
            stop=arguments.stop,
            sampling=sampling,
            exact=_EXACT[arguments.exact],
            top_logprobs=arguments.logprobs,
            on_end=results.append,
        ):
            show(piece)
        scores = _scores(results[0], engine.decode)
    if arguments.json:
        import msgspec

        print(msgspec.json.encode(results[0]).decode())  # an infinite gap becomes null
    else:
        print()
        print("\n".join([*scores, _figures(results[0].request)]), file=sys.stderr)
    return 0


def _require_limits(arguments: argparse.Namespace) -> None:
    """Check what else would fail only once a model is loaded."""
    given = {name: getattr(arguments, name) for name in ("cs", *_LIMITS)}
    adapting = [name for name, value in given.items() if value is not None]
    adapting += ["proactive"] if arguments.proactive else []
    if adapting and arguments.method != ADAPTIVE:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in adapting)
        raise ConfigError(f"{options}: for --method {ADAPTIVE} alone; it is {arguments.method}.")
    if arguments.max_new_tokens < 1:
        raise ConfigError(f"--max-new-tokens is {arguments.max_new_tokens}; use at least 1.")
    if not stop_strings_fit(arguments.stop):
        raise ConfigError(
            f"--stop is {arguments.stop}; use at most {MAX_STOP_STRINGS} texts, each of 1 to "
            f"{MAX_STOP_LENGTH} characters."
        )
    if arguments.logprobs is not None and not 0 <= arguments.logprobs <= MAX_TOP_LOGPROBS:
        raise ConfigError(f"--logprobs is {arguments.logprobs}; use 0 to {MAX_TOP_LOGPROBS}.")


def _scores(result: GenerationResult, decode: Callable[[Sequence[int]], str]) -> list[str]:
    """Return a line for each token whose scores were asked for, behind a heading."""
    if result.scores is None:
        return []

    def line(token: int, score: TokenScore) -> str:
        best = ", ".join(f"{decode([other])!r} {logprob:.3f}" for other, logprob in score.top)
        text = decode([token])
        return (
            f"{token:>8}  {text!r:<16}  {score.logprob:>8.3f}  {score.gap:>8.3f}  {best}".rstrip()
        )

    heading = f"{'id':>8}  {'token':<16}  {'logprob':>8}  {'gap':>8}  likeliest"
    pairs = zip(result.token_ids, result.scores, strict=True)
    return [heading, *(line(token, score) for token, score in pairs)]


def _figures(record: RequestRecord) -> str:
    mat = record.round_tokens / record.rounds if record.rounds else float("nan")
    return (
        f"[{record.method}: {record.output_tokens} tokens ({record.finish_reason}), "
        f"{record.output_tokens / record.total_s:.1f} tokens/s, first token after "
        f"{record.ttft_s * MS_PER_S:.0f} ms, {mat:.2f} tokens a round, "
        f"{record.target_forwards} target forwards, {record.uplink_bytes} bytes up, "
        f"{record.downlink_bytes} down]"
    )


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Time draft, target and link, keep what is not kept yet, and show the tables."
    )
    _add_pair(parser)
    parser.add_argument("--refresh", action="store_true", help="measure again what is on disk")
    parser.add_argument(
        "--export", metavar="FILE", type=Path, help="write the tables for the simulator, as JSON"
    )
    parser.set_defaults(command=_profile)


def _profile(arguments: argparse.Namespace) -> int:
    with _engine(arguments) as engine:
        print(engine.profile(refresh=arguments.refresh))
        if arguments.export is not None:
            _export(engine.devices(), arguments.export)
    return 0


def _export(devices: "Devices", path: Path) -> None:
    from autodraft.simulate import devices_content

    try:
        path.write_text(json.dumps(devices_content(devices), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"The tables cannot be written to {path} ({error.strerror}). Give --export another "
            "file."
        ) from error


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show versions, devices, folders and embedded models."
    parser.add_argument(
        "--prepare", action="store_true", help="prepare the embedded models where they are not yet"
    )
    parser.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from autodraft.doctor import diagnose, format_report

    if arguments.prepare:
        from autodraft.models.embedded import embedded_names, resolve_embedded

        for name in embedded_names():
            print(f"{name}: ready in {resolve_embedded(name)}", flush=True)
    report = diagnose()
    print(format_report(report))
    return 0 if report.ok else EXIT_FAILED
