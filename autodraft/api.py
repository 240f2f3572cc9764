"""The library's face: ``Autodraft`` at the user, ``serve_target`` in the cloud.

Wires models, link and methods together from one configuration. It knows no benchmark and prints
nothing.
"""

import asyncio
import contextlib
import platform
import signal
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from types import TracebackType
from typing import Any, Final

import msgspec

from autodraft import __version__
from autodraft.config import (
    DEFAULT_HOST,
    DEFAULT_MAX_NEW_TOKENS,
    DEFAULT_METHOD,
    DEFAULT_PORT,
    DEFAULT_SERVER_NAME,
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    RuntimeConfig,
    ServerConfig,
)
from autodraft.decoding.stopping import StopRules, answer_limit
from autodraft.decoding.text import TextStream
from autodraft.engine.methods import DraftSide, make_method
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.service import TargetService
from autodraft.engine.session import Meters, Request
from autodraft.errors import AutodraftError, ContextLengthError, TokenizerMismatch
from autodraft.meters import ModelledMeter
from autodraft.models.hardware import device_label, torch_threads
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from autodraft.models.tokenizer import (
    Tokenizer,
    TokenizerIdentity,
    require_compatible,
    unknown_to_target,
)
from autodraft.protocol.messages import Welcome
from autodraft.records import GenerationResult
from autodraft.settings import client_token, ensure_token, token_origin
from autodraft.transport.client import Link

PINGS: Final = 5

Messages = Sequence[Mapping[str, str]]


class Autodraft:
    """A draft model on this machine, and a link to a target server that verifies for it.

    The draft model is loaded once: on ``connect``, or the first run, where the configuration asks
    for a method that drafts with it, else when such a method is run. Usable as a context manager::

        with Autodraft(draft_model=DRAFT, target_model=TARGET, target_host=HOST) as engine:
            print(engine.run("Why is the sky blue?").text)
    """

    def __init__(  # noqa: PLR0913 - keyword options that users know by these names
        self,
        draft_model: str,
        target_model: str,
        draft_quantization: str = "none",
        target_quantization: str | None = None,
        target_host: str = DEFAULT_HOST,
        target_port: int = DEFAULT_PORT,
        *,
        server_name: str = DEFAULT_SERVER_NAME,
        tokenizer: str | None = None,
        device_map: str = "auto",
        dtype: str = "auto",
        target_dtype: str | None = None,
        token: str | None = None,
        hf_token: str | None = None,
    ) -> None:
        """Prepare an engine; nothing is loaded or connected yet.

        Args:
            draft_model: Model that drafts here: hub id, folder, ``.gguf`` file or ``embedded:…``.
            target_model: Model that the server verifies with.
            draft_quantization: ``none``, ``8bit`` or ``4bit``.
            target_quantization: The same for the target; None takes the server's.
            target_host: Address of the target server.
            target_port: Its port.
            server_name: Name the server must have been given with ``--server-name``.
            tokenizer: Tokenizer and chat template of the target, where they are not found under
                ``target_model`` on this machine.
            device_map: Device of the draft model.
            dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
            target_dtype: The same for the target; None takes ``dtype``.
            token: Access token of the server; None looks in ``AUTODRAFT_TOKEN`` and, for a server
                on this machine, in this user's token file.
            hf_token: Hugging Face token for gated models.

        Raises:
            ConfigError: If an option has a value that is not allowed.
        """
        config = ExperimentConfig(
            runtime=RuntimeConfig(
                target_host=target_host,
                target_port=target_port,
                server_name=server_name,
                device_map=device_map,
            ),
            models=ModelsConfig(
                base_model_path=target_model,
                draft_model_path=draft_model,
                tokenizer_path=tokenizer or target_model,
                draft_quantization=draft_quantization,
                target_quantization=target_quantization,
                dtype=dtype,
                target_dtype=target_dtype or dtype,
            ),
        )
        self._prepare(config, token, hf_token)

    @classmethod
    def from_config(
        cls, config: ExperimentConfig, token: str | None = None, hf_token: str | None = None
    ) -> "Autodraft":
        """Prepare an engine from a whole configuration; nothing is loaded or connected yet."""
        engine = cls.__new__(cls)
        engine._prepare(config, token, hf_token)
        return engine

    def _prepare(self, config: ExperimentConfig, token: str | None, hf_token: str | None) -> None:
        self._config = config
        self._token = token
        self._hf_token = hf_token
        self._target: RemoteTarget | None = None
        self._draft: LoadedModel | None = None
        self._tokenizer: Tokenizer | None = None
        self._side = DraftSide()
        objective = config.objective
        self._meters = Meters(
            draft=ModelledMeter(objective.draft_watts, objective.draft_idle_watts),
            target=ModelledMeter(objective.target_watts, objective.target_idle_watts),
        )

    def connect(self) -> None:
        """Load what is not loaded yet, connect and shake hands; nothing if that is done.

        Raises:
            ModelLoadError: If draft model or tokenizer cannot be loaded.
            TokenizerMismatch: If draft, tokenizer and target do not share their token ids.
            LinkError: If the server cannot be reached or refuses.
        """
        if self._target is not None:
            return
        runtime, models = self._config.runtime, self._config.models
        token = self._token or client_token(runtime.target_host, runtime.target_token_env)
        # The link comes first: a wrong address should show before minutes of loading.
        link = Link(runtime.target_host, runtime.target_port, token)
        try:
            wish = TargetWish(
                runtime.server_name,
                models.base_model_path,
                models.target_quantization,
                models.target_dtype,
            )
            target = RemoteTarget(link, wish)
            self._load(target)
        except BaseException:
            link.close()
            raise
        self._target = target

    def _load(self, target: RemoteTarget) -> None:
        models = self._config.models
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(models.tokenizer_path, hf_token=self._hf_token)
        welcome = target.welcome
        if self._tokenizer.fingerprint() != welcome.tokenizer_hash:
            raise TokenizerMismatch(
                f"The tokenizer {models.tokenizer_path!r} is not that of the target "
                f"{welcome.model!r} on the server. Correct TOKENIZER_PATH, or leave it out."
            )
        self._side.runner = None  # what it was checked against was another connection's target
        if self._config.needs_draft_model:
            self._load_draft(welcome)

    def _load_draft(self, welcome: Welcome) -> None:
        models = self._config.models
        if self._draft is None:
            self._draft = load_model(
                ModelSource(
                    name=models.draft_model_path,
                    quantization=models.draft_quantization,
                    dtype=models.dtype,
                    device_map=self._config.runtime.device_map,
                    hf_token=self._hf_token,
                    drafts=True,
                )
            )
        theirs = TokenizerIdentity(welcome.tokenizer_hash, welcome.added_tokens)
        ours = self._draft.tokenizer.identity
        names = {"target_name": welcome.model, "draft_name": models.draft_model_path}
        require_compatible(theirs, ours, **names)
        rows = (welcome.vocab_size, self._draft.runner.vocab_size)
        self._side.excluded = unknown_to_target(theirs, ours, *rows)
        self._side.runner = self._draft.runner

    def measure_rtt(self) -> float:
        """Return the median seconds of an empty round trip to the server."""
        target = self._connected()
        return statistics.median(target.ping() for _ in range(PINGS))

    def encode_chat(self, messages: Messages) -> list[int]:
        """Return a chat's token ids in the target's own template, the answer's opening added."""
        self._connected()
        return self._text_side.encode_chat(messages)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        self._connected()
        return self._text_side.decode(token_ids)

    def run(
        self,
        input_text: str | None = None,
        *,
        messages: Messages | None = None,
        prompt_ids: Sequence[int] | None = None,
        method: MethodSpec | str = DEFAULT_METHOD,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
    ) -> GenerationResult:
        """Answer one prompt; connects first where that has not been done.

        Args:
            input_text: A user's turn, put into the chat template.
            messages: A whole chat instead, each with ``role`` and ``content``.
            prompt_ids: Token ids instead, taken as they are.
            method: Method id, or a method with limits of its own.
            max_new_tokens: Most tokens of the answer.

        Raises:
            ValueError: If not exactly one of the three prompts is given.
            ConfigError: If there is no such method.
            ContextLengthError: If the prompt leaves no room for an answer.
            LinkError: If the link or the server fails.
        """
        prompt = self._prompt(input_text, messages, prompt_ids)
        request = self._request(prompt, method, max_new_tokens)
        with self._link_dropped_on_error():
            token_ids = [token for block in request for token in block]
        return _result(self._text_side.decode(token_ids), request)

    def stream(
        self,
        input_text: str | None = None,
        *,
        messages: Messages | None = None,
        prompt_ids: Sequence[int] | None = None,
        method: MethodSpec | str = DEFAULT_METHOD,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        on_end: Callable[[GenerationResult], None] | None = None,
    ) -> Iterator[str]:
        """Answer one prompt and yield its text as it becomes certain; raises as ``run`` does.

        Args:
            input_text: A user's turn, put into the chat template.
            messages: A whole chat instead, each with ``role`` and ``content``.
            prompt_ids: Token ids instead, taken as they are.
            method: Method id, or a method with limits of its own.
            max_new_tokens: Most tokens of the answer.
            on_end: Called with the whole result when the answer has ended.
        """
        prompt = self._prompt(input_text, messages, prompt_ids)
        request = self._request(prompt, method, max_new_tokens)
        text, pieces = TextStream(self._text_side.decode), []
        with self._link_dropped_on_error():
            for block in request:
                if piece := text.push(block):
                    pieces.append(piece)
                    yield piece
        if piece := text.flush():
            pieces.append(piece)
            yield piece
        if on_end is not None:
            on_end(_result("".join(pieces), request))

    def describe(self) -> dict[str, Any]:
        """Return models, devices and versions of both sides, for a manifest.

        ``draft`` is None as long as no draft model was needed.
        """
        welcome = self._connected().welcome
        draft = self._draft
        hidden = {"added_tokens", "eos_ids"}
        target = msgspec.structs.asdict(welcome)
        return {
            "target": {key: value for key, value in target.items() if key not in hidden},
            "draft": draft and _described(draft, self._config.runtime.draft_device_name),
            "tokenizer": self._text_side.name,
            "client": {
                "autodraft": __version__,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "torch_threads": torch_threads(),
                **{name: version(name) for name in ("torch", "transformers", "numpy")},
            },
        }

    def close(self) -> None:
        """Close the link; the loaded models stay for the next connection. Safe to call twice."""
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def __enter__(self) -> "Autodraft":
        self.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _text_side(self) -> Tokenizer:
        assert self._tokenizer is not None
        return self._tokenizer

    def _connected(self) -> RemoteTarget:
        self.connect()
        assert self._target is not None
        return self._target

    def _prompt(
        self,
        input_text: str | None,
        messages: Messages | None,
        prompt_ids: Sequence[int] | None,
    ) -> list[int]:
        given = [prompt for prompt in (input_text, messages, prompt_ids) if prompt is not None]
        if len(given) != 1:
            raise ValueError("Give exactly one of input_text, messages and prompt_ids.")
        if prompt_ids is not None:
            return list(prompt_ids)
        if input_text is not None:
            messages = [{"role": "user", "content": input_text}]
        assert messages is not None
        return self.encode_chat(messages)

    def _request(self, prompt: list[int], method: MethodSpec | str, max_new_tokens: int) -> Request:
        target = self._connected()
        spec = self._config.method(method) if isinstance(method, str) else method
        spec.require_available()
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.")
        limit = answer_limit(max_new_tokens, len(prompt), target.welcome.max_context)
        if not prompt or limit < 1:
            raise ContextLengthError(
                f"The prompt has {len(prompt)} tokens; {target.welcome.model} on this server takes "
                f"1 to {target.welcome.max_context - 1}. Shorten it, or start the server with a "
                "larger --max-context where the model allows it."
            )
        if spec.needs_draft_model and self._side.runner is None:
            self._load_draft(target.welcome)
        rules = StopRules(frozenset(target.welcome.eos_ids), limit)
        return Request(target, make_method(spec, self._side), prompt, rules, self._meters)

    @contextlib.contextmanager
    def _link_dropped_on_error(self) -> Iterator[None]:
        """Close a link that an error left in the middle of something; the next run reconnects."""
        try:
            yield
        except (AutodraftError, KeyboardInterrupt):
            self.close()
            raise


def _described(draft: LoadedModel, device_name: str | None) -> dict[str, Any]:
    return {
        "model": draft.source.name,
        "revision": draft.revision,
        "quantization": draft.source.quantization,
        "dtype": draft.runner.dtype,
        "device": draft.runner.device,
        "device_name": device_name or device_label(draft.runner.device),
    }


def _result(text: str, request: Request) -> GenerationResult:
    record = request.record
    return GenerationResult(
        text=text,
        token_ids=list(record.output_ids),
        finish_reason=record.finish_reason,
        request=record,
        rounds=request.rounds,
    )


def serve_target(
    host: str = "0.0.0.0",
    port: int = DEFAULT_PORT,
    server_name: str = DEFAULT_SERVER_NAME,
    hf_token: str | None = None,
    *,
    on_ready: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Run a target server until it is interrupted.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        server_name: Name that clients must expect.
        hf_token: Hugging Face token for gated models.
        on_ready: Called once with one line that says where the server listens.
        options: Further fields of ``ServerConfig``.

    Raises:
        ConfigError: If an option has a value that is not allowed.
        ConnectError: If the address cannot be bound.
        ModelLoadError: If a model to be loaded at the start cannot be.
    """
    config = ServerConfig(
        host=host, port=port, server_name=server_name, hf_token=hf_token, **options
    )
    asyncio.run(_serve(config, on_ready))


async def _serve(config: ServerConfig, on_ready: Callable[[str], None] | None) -> None:
    token = None if config.allow_anonymous else ensure_token()
    service = TargetService(config, token)
    port = await service.start()
    if on_ready is not None:
        on_ready(_listening_line(config, port))
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    try:
        await stopped.wait()
    finally:
        await service.stop()


def _listening_line(config: ServerConfig, port: int) -> str:
    door = "no token needed" if config.allow_anonymous else f"access token in {token_origin()}"
    model = config.base_model_path or "chosen by the first client"
    return (
        f"AutoDraft target server {config.server_name!r} listening on {config.host}:{port} "
        f"(model: {model}; {door})"
    )
