"""The command ``generate``: what its options ask for, and what it prints."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autodraft import GenerationResult, RequestRecord, Sampling, TokenScore, cli
from autodraft.models.loader import ModelSource, load_model
from autodraft.transport.shaping import LinkShape
from tests.fakes import LoopbackLink

GENERATE = ["generate", "Hi!", "--target-model", "a/target", "--draft-model", "a/draft"]
SCORES = [
    TokenScore(0.25, -0.5, [(7, -0.5), (9, -1.25)]),
    TokenScore(math.inf, -2.0, [(7, -0.125), (9, -2.0)]),
]
TABLE = """\
      id  token              logprob       gap  likeliest
       7  't7'                -0.500     0.250  't7' -0.500, 't9' -1.250
       9  't9'                -2.000       inf  't7' -0.125, 't9' -2.000
"""


def record() -> RequestRecord:
    """Return the record of an answer of two tokens; every figure that plays no part is 0."""
    texts = {"method": "chain", "finish_reason": "stop"}
    known = {
        "total_s": 0.5,
        "output_tokens": 2,
        "output_ids": [7, 9],
        "output_gaps": [0.25, math.inf],
    }
    needed = [field for field in msgspec.structs.fields(RequestRecord) if field.required]
    return RequestRecord(**{field.name: 0 for field in needed} | texts | known)  # type: ignore[arg-type]


class FakeEngine:
    """Answers "ab", with scores where they are asked for; keeps what it was asked."""

    asked: dict[str, Any]

    def __init__(self, **_: Any) -> None:
        pass

    def __enter__(self) -> "FakeEngine":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f"t{token}" for token in token_ids)

    def stream(
        self, prompt: str, *, on_end: Callable[[GenerationResult], None], **options: Any
    ) -> Iterator[str]:
        FakeEngine.asked = {"prompt": prompt, **options}
        yield from "ab"
        on_end(
            GenerationResult(
                text="ab",
                token_ids=[7, 9],
                finish_reason="stop",
                request=record(),
                rounds=[],
                scores=None if options["top_logprobs"] is None else SCORES,
            )
        )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    monkeypatch.setattr("autodraft.api.Autodraft", FakeEngine)
    FakeEngine.asked = {}
    return FakeEngine


def test_without_options_the_answer_is_greedy_and_the_rest_is_the_servers_choice(
    engine: type[FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(GENERATE) == 0
    assert engine.asked == {
        "prompt": "Hi!",
        "method": "opt_tree",
        "cs": None,
        "proactive": False,
        "slo": None,
        "max_new_tokens": 256,
        "stop": [],
        "sampling": Sampling(),
        "exact": None,
        "top_logprobs": None,
    }
    printed = capsys.readouterr()
    assert printed.out == "ab\n"
    assert printed.err.startswith("[chain: 2 tokens (stop), 4.0 tokens/s, ")


def test_what_only_autodraft_takes_reaches_the_engine(engine: type[FakeEngine]) -> None:
    options = ["--method", "autodraft", "--cs", "0", "--proactive", "--max-tpot-ms", "30"]
    assert cli.main([*GENERATE, *options]) == 0
    assert engine.asked["cs"] == 0.0
    assert engine.asked["proactive"] is True
    assert engine.asked["slo"] == {"max_tpot_ms": 30.0}
    assert cli.main([*GENERATE, "--method", "autodraft", "--cs", "tps"]) == 0
    assert (engine.asked["cs"], engine.asked["proactive"]) == (0.0, False)


@pytest.mark.parametrize(
    "options", [["--proactive"], ["--cs", "0"], ["--min-tokens-per-s", "0.5"]], ids=" ".join
)
def test_other_methods_refuse_what_only_autodraft_takes(
    engine: type[FakeEngine], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*GENERATE, "--method", "chain", *options]) == 2
    assert engine.asked == {}
    printed = capsys.readouterr().err
    assert f"{options[0]}: for --method autodraft alone; it is chain." in printed


def test_every_option_of_sampling_reaches_the_engine(engine: type[FakeEngine]) -> None:
    options = [
        "--temperature", "0.7", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.05", "--seed",
        "18446744073709551615", "--repetition-penalty", "1.2", "--presence-penalty", "-0.5",
        "--frequency-penalty", "0.25", "--min-new-tokens", "3",
    ]  # fmt: skip
    assert cli.main([*GENERATE, *options]) == 0
    assert engine.asked["sampling"] == Sampling(
        temperature=0.7,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        seed=2**64 - 1,
        repetition_penalty=1.2,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        min_new_tokens=3,
    )


@pytest.mark.parametrize(("word", "exact"), [("auto", None), ("0", False), ("1", True)])
def test_exact_is_on_off_or_the_servers_choice(
    word: str, exact: bool | None, engine: type[FakeEngine]
) -> None:
    assert cli.main([*GENERATE, "--exact", word]) == 0
    assert engine.asked["exact"] is exact


def test_several_texts_may_end_the_answer(engine: type[FakeEngine]) -> None:
    assert cli.main([*GENERATE, "--stop", "END", "--stop", "\n\n"]) == 0
    assert engine.asked["stop"] == ["END", "\n\n"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "-1"], "temperature=-1.0 must be a number from 0 to 100."),
        (["--temperature", "nan"], "temperature=nan must be a number from 0 to 100."),
        (["--top-p", "0"], "top_p=0.0 must be a number above 0 to 1."),
        (["--seed", "-1"], "seed=-1 must be a whole number from 0 to 18446744073709551615."),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0; use at least 1."),
        (["--stop", ""], "--stop is ['']; use at most 16 texts, each of 1 to 256 characters."),
        (["--logprobs", "21"], "--logprobs is 21; use 0 to 20."),
        (["--logprobs", "-1"], "--logprobs is -1; use 0 to 20."),
    ],
)
def test_a_value_that_is_not_allowed_ends_the_command_before_anything_is_loaded(
    options: list[str],
    message: str,
    engine: type[FakeEngine],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([*GENERATE, *options]) == cli.EXIT_USAGE
    assert capsys.readouterr().err == f"error: {message}\n"
    assert engine.asked == {}


@pytest.mark.parametrize("options", [["--exact", "yes"], ["--top-k", "1.5"], ["--logprobs", "x"]])
def test_a_value_of_another_kind_prints_the_usage(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([*GENERATE, *options])
    assert stop.value.code == cli.EXIT_USAGE
    assert options[0] in capsys.readouterr().err


def test_log_probabilities_are_a_table_behind_the_text_which_stays_alone_on_stdout(
    engine: type[FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*GENERATE, "--logprobs", "2"]) == 0
    assert engine.asked["top_logprobs"] == 2
    printed = capsys.readouterr()
    assert printed.out == "ab\n"
    table, figures = printed.err.split("[chain")
    assert table == TABLE
    assert figures.endswith("]\n")


def test_the_record_is_json_also_where_a_token_had_no_alternative(
    engine: type[FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*GENERATE, "--logprobs", "2", "--json"]) == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    printed = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert printed["request"]["output_gaps"] == [0.25, None]
    assert printed["scores"][0] == {"gap": 0.25, "logprob": -0.5, "top": [[7, -0.5], [9, -1.25]]}


@pytest.mark.usefixtures("one_thread")
def test_a_seed_gives_one_answer_whichever_method_finds_it(
    tiny_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = load_model(ModelSource(str(tiny_pair[0]), dtype="float32", device_map="cpu"))

    def link(host: str, port: int, token: str | None, shape: LinkShape) -> LoopbackLink:
        return LoopbackLink(
            target.runner,
            sorted(target.tokenizer.eos_ids),
            tokenizer_hash=target.tokenizer.fingerprint(),
            added_tokens=target.tokenizer.added_tokens(),
            max_context=200,
        )

    def answer(method: str, seed: str) -> list[int]:
        place = ["--target-model", str(tiny_pair[0]), "--draft-model", str(tiny_pair[1])]
        how = ["--dtype", "float32", "--device-map", "cpu", "--method", method, "--json"]
        drawn = ["--temperature", "1", "--seed", seed, "--max-new-tokens", "24"]
        assert cli.main(["generate", "Hi!", *place, *how, *drawn]) == 0
        ids: list[int] = json.loads(capsys.readouterr().out)["token_ids"]
        return ids

    monkeypatch.setattr("autodraft.engine.user.Link", link)
    plain = answer("server_only", "3")
    assert answer("chain", "3") == plain
    assert answer("opt_tree", "3") == plain
    assert answer("server_only", "4") != plain
