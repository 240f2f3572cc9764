"""The blocks that say what an experiment runs on: machines, models, prices, questions, limits.

One immutable class for each block; the one place for its defaults. This module knows no methods
and no files.
"""

from typing import Annotated, Any, Final

from pydantic import Field

from autodraft.config.base import Block
from autodraft.config.knob import Choice, Each, Flag, Number, OrWord, Text, Whole, knob

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 26_001
DEFAULT_SERVER_NAME: Final = "autodraft"

OBJECTIVES: Final = ("total_cost", "api_cost", "draft_energy", "target_energy")
QUANTIZATIONS: Final = ("none", "4bit", "8bit")
DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
SPEC_BENCH_TASKS: Final = (
    "mt_bench",
    "translation",
    "summarization",
    "qa",
    "math_reasoning",
    "rag",
)
BENCHES: Final = (
    "mt_bench",
    "humaneval",
    "humaneval:completion",
    "spec_bench",
    *(f"spec_bench:{task}" for task in SPEC_BENCH_TASKS),
    "gsm8k",
    "cnn_dailymail",
    "quick",
)

_DTYPE = Choice(DTYPES)
_QUANTIZATION = Choice(QUANTIZATIONS)
_COST_SENSITIVITIES = Each(Number(0, 1))
_LIMIT = OrWord("unset", Number(0, above=True))
_MODEL = Text(
    "a Hugging Face name (Qwen/Qwen2.5-1.5B-Instruct), a folder, or embedded:smollm2-135m-instruct"
)
_HOST = Text(
    "a host name or an IP address, without scheme and port (TARGET_PORT holds the port)",
    r"[A-Za-z0-9._-]+|[0-9A-Fa-f.]*(:[0-9A-Fa-f.]*){2,8}(%[A-Za-z0-9._-]+)?",
)
_DEVICE = Text(
    "auto, cpu, mps, cuda, cuda:N, xpu, xpu:N, npu, npu:N, balanced, balanced_low_0 or sequential",
    r"auto|cpu|mps|balanced|balanced_low_0|sequential|(cuda|xpu|npu)(:\d{1,3})?",
)
_FOLDER = Text("a folder, relative to where the command runs, or absolute")
_LABEL = Text("printable text of 1 to 128 characters, on one line", r".{1,128}")
_VARIABLE = Text(
    "the NAME of an environment variable (capitals, digits, _), never the token itself",
    r"[A-Z_][A-Z0-9_]*",
)


class RuntimeConfig(Block):
    """Where the target server is and where the draft runs."""

    target_host: Annotated[
        str, knob("TARGET_HOST", _HOST, "Address of the target server, as the client reaches it.")
    ] = DEFAULT_HOST
    target_port: Annotated[
        int, knob("TARGET_PORT", Whole(1, 65_535), "Port that the target server listens on.")
    ] = DEFAULT_PORT
    server_name: Annotated[
        str,
        knob(
            "SERVER_NAME",
            _LABEL,
            "Must equal the server's `--server-name`; part of the keys of profiles and curves.",
        ),
    ] = DEFAULT_SERVER_NAME
    device_map: Annotated[
        str,
        knob(
            "DEVICE_MAP",
            _DEVICE,
            "Device of the draft model. The server's own `--device-map` decides for the target.",
        ),
    ] = "auto"
    draft_device_name: Annotated[
        str | None,
        knob(
            "DRAFT_DEVICE_NAME",
            OrWord("detected", _LABEL),
            "Label of the user's device in the manifest, in profiles and in tables.",
        ),
    ] = None
    target_token_env: Annotated[
        str,
        knob(
            "TARGET_TOKEN_ENV",
            _VARIABLE,
            "Name of the environment variable that holds the access token (not the token).",
            secret=True,
        ),
    ] = "AUTODRAFT_TOKEN"


class ModelsConfig(Block):
    """The two models and the form they are loaded in."""

    base_model_path: Annotated[
        str, knob("BASE_MODEL_PATH", _MODEL, "The target model (the name is historical).")
    ]
    draft_model_path: Annotated[
        str, knob("DRAFT_MODEL_PATH", _MODEL, "The draft model, which runs at the user.")
    ]
    tokenizer_path: Annotated[
        str,
        knob(
            "TOKENIZER_PATH",
            _MODEL,
            "Tokenizer and chat template that the client uses.",
            same_as="BASE_MODEL_PATH",
        ),
    ] = Field(default_factory=lambda data: data["base_model_path"])
    target_quantization: Annotated[
        str | None,
        knob(
            "TARGET_QUANTIZATION",
            OrWord("server", _QUANTIZATION),
            "Quantisation of the target. `server` takes what the server has; another value wins "
            "under lazy load or is refused.",
        ),
    ] = None
    draft_quantization: Annotated[
        str, knob("DRAFT_QUANTIZATION", _QUANTIZATION, "Quantisation of the draft.")
    ] = "none"
    dtype: Annotated[
        str,
        knob(
            "DTYPE",
            _DTYPE,
            "Number format of the draft; `auto`: the checkpoint's on a GPU, on a CPU bfloat16 "
            "where it is native, else float32.",
        ),
    ] = "auto"
    target_dtype: Annotated[
        str,
        knob("TARGET_DTYPE", _DTYPE, "Number format asked of the target.", same_as="DTYPE"),
    ] = Field(default_factory=lambda data: data["dtype"])


class ObjectiveConfig(Block):
    """What is to be minimised, and the prices and watts it is computed from."""

    objective_metrics: Annotated[
        tuple[str, ...],
        knob(
            "OBJECTIVE_METRICS_CSV",
            Each(Choice(OBJECTIVES)),
            "Objectives that tables and plots show; the first one is the main one.",
        ),
    ] = ("total_cost",)
    autodraft_cs_list: Annotated[
        tuple[float, ...],
        knob(
            "AUTODRAFT_CS_LIST",
            _COST_SENSITIVITIES,
            "Cost sensitivities `cs` that autodraft runs with: 0 speed first, 1 objective first.",
        ),
    ] = (0.0, 0.5, 1.0)
    server_only_autodraft_cs_list: Annotated[
        tuple[float, ...],
        knob(
            "SERVER_ONLY_AUTODRAFT_CS_LIST",
            _COST_SENSITIVITIES,
            "The same for the co-located autodraft.",
            same_as="AUTODRAFT_CS_LIST",
        ),
    ] = Field(default_factory=lambda data: data["autodraft_cs_list"])
    base_cost_sensitivity: Annotated[
        float,
        knob(
            "BASE_COST_SENSITIVITY",
            Number(0, 1),
            "The `cs` at which fixed baselines are scored.",
        ),
    ] = 0.5
    target_per_hour_cost: Annotated[
        float,
        knob(
            "TARGET_PER_HOUR_COST",
            Number(),
            "Price of the cloud GPU: api_cost, total_cost.",
            unit="$/h",
        ),
    ] = 1.208
    draft_electricity_cost_per_kwh: Annotated[
        float,
        knob(
            "DRAFT_ELECTRICITY_COST_PER_KWH",
            Number(),
            "Price of electricity at the user's: total_cost.",
            unit="$/kWh",
        ),
    ] = 0.2
    user_comm_cost_per_gb: Annotated[
        float,
        knob(
            "USER_COMM_COST_PER_GB",
            Number(),
            "Price of traffic from user to cloud: total_cost.",
            unit="$/GB",
        ),
    ] = 0.33
    cloud_outbound_cost_per_gb: Annotated[
        float,
        knob(
            "CLOUD_OUTBOUND_COST_PER_GB",
            Number(),
            "Price of traffic from cloud to user: total_cost.",
            unit="$/GB",
        ),
    ] = 0.09
    draft_per_hour_cost: Annotated[
        float | None,
        knob(
            "DRAFT_PER_HOUR_COST",
            OrWord("unset", Number()),
            "Price of the user's device where it is rented; it replaces electricity in total_cost.",
            unit="$/h",
        ),
    ] = None
    draft_watts: Annotated[
        float,
        knob(
            "DRAFT_WATTS",
            Number(),
            "Power of the user's device at work; for modelled energy only.",
            unit="W",
        ),
    ] = 65.0
    draft_idle_watts: Annotated[
        float,
        knob(
            "DRAFT_IDLE_WATTS",
            Number(),
            "Power of the user's device while it waits; for modelled energy only.",
            unit="W",
        ),
    ] = 15.0
    target_watts: Annotated[
        float,
        knob(
            "TARGET_WATTS",
            Number(),
            "Power of the target's machine at work; for modelled energy only.",
            unit="W",
        ),
    ] = 65.0
    target_idle_watts: Annotated[
        float,
        knob(
            "TARGET_IDLE_WATTS",
            Number(),
            "Power of the target's machine while it waits; for modelled energy only.",
            unit="W",
        ),
    ] = 15.0
    billing: Annotated[
        str,
        knob(
            "BILLING",
            Choice(("busy", "held")),
            "What the cloud bills: `busy` all model compute on the billed machine, `held` the "
            "session's wall time. One rule for every method; tables show both.",
        ),
    ] = "busy"


class DatasetConfig(Block):
    """The questions that are asked."""

    benches: Annotated[
        tuple[str, ...],
        knob(
            "BENCHES_CSV",
            Each(Choice(BENCHES)),
            "Benchmarks, run in this order. `humaneval` asks in chat form, `humaneval:completion` "
            "has the raw prompt continued, up to the official stop words.",
        ),
    ] = ("mt_bench",)
    question_limit: Annotated[
        int | None,
        knob(
            "QUESTION_LIMIT",
            OrWord("all", Whole(1)),
            "First N questions of each benchmark (and of each of its sub-tasks).",
            unit="questions",
        ),
    ] = None
    bench_dir: Annotated[
        str | None,
        knob(
            "BENCH_DIR",
            OrWord("unset", _FOLDER),
            "Folder of the question files; `unset` looks in AUTODRAFT_BENCH_DIR, then in the "
            "cache.",
        ),
    ] = None
    download: Annotated[
        bool,
        knob(
            "DOWNLOAD",
            Flag(),
            "Download a benchmark that is on no disk, checked by its SHA-256, into the cache.",
        ),
    ] = True
    validation_questions: Annotated[
        int,
        knob(
            "VALIDATION_QUESTIONS",
            Whole(1, 10_000),
            "Last questions of each benchmark (and of each sub-task) that shapes are tuned on; not "
            "measured where one was.",
            unit="questions",
        ),
    ] = 8


def _limit(tag: str, meaning: str, unit: str) -> Any:
    return knob(tag, _LIMIT, meaning, unit=unit)


class SloConfig(Block):
    """Limits that hold beside `cs`; `autodraft` follows them, every method is judged by them."""

    min_tokens_per_s: Annotated[
        float | None, _limit("MIN_TOKENS_PER_S", "Least speed.", "tokens/s")
    ] = None
    max_cost_per_1m_tokens: Annotated[
        float | None,
        _limit("MAX_COST_PER_1M_TOKENS", "Most money.", "$ per million output tokens"),
    ] = None
    max_tpot_ms: Annotated[
        float | None, _limit("MAX_TPOT_MS", "Longest mean time of a later token.", "ms")
    ] = None
    max_ttft_ms: Annotated[
        float | None, _limit("MAX_TTFT_MS", "Longest time to the first token.", "ms")
    ] = None

    @property
    def limits(self) -> bool:
        """Whether there is any limit."""
        return any(getattr(self, name) is not None for name in type(self).model_fields)
