"""``Autodraft``: the library's face at the user.

Wires models, link and methods together from one configuration. It knows no benchmark and prints
nothing.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from autodraft.api.asking import (
    ALLOWED_LIMITS,
    Limits,
    Messages,
    limits_given,
    require_known_tokens,
    require_stop_strings,
    sensitivity,
)
from autodraft.api.tradeoff import Tradeoffs
from autodraft.config import (
    ADAPTIVE,
    AT_SERVER,
    DEFAULT_HOST,
    DEFAULT_MAX_NEW_TOKENS,
    DEFAULT_METHOD,
    DEFAULT_PORT,
    DEFAULT_SERVER_NAME,
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    NetworkSetting,
    ObjectiveConfig,
    RuntimeConfig,
    SloConfig,
)
from autodraft.cost import OBJECTIVES, CurvePoint
from autodraft.decoding.sampling import GREEDY, Sampling
from autodraft.decoding.stopping import StopRules, StopText, answer_limit
from autodraft.decoding.text import TextStream
from autodraft.decoding.wish import Wish
from autodraft.engine.methods import make_method
from autodraft.engine.session import Request, never
from autodraft.engine.user import UserSide
from autodraft.errors import AutodraftError, ConfigError, ContextLengthError
from autodraft.models.tokenizer import Tokenizer
from autodraft.policy.limits import Forecast
from autodraft.policy.pair import describe_pair
from autodraft.profiling.traces import Trace
from autodraft.records import GenerationResult, LimitReport
from autodraft.simulate import Devices
from autodraft.simulate.curve import REFERENCE_CS

PINGS: Final = 5


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
        cost: str = OBJECTIVES[0],
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
            cost: What ``autodraft`` weighs against time: ``total_cost``, ``api_cost``,
                ``draft_energy`` or ``target_energy``.
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
            objective=ObjectiveConfig(objective_metrics=(cost,)),
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
        self._user = UserSide(config, token, hf_token)
        self._tradeoffs = Tradeoffs(config, self._user)

    def connect(self) -> None:
        """Load what is not loaded yet, connect and shake hands; nothing if that is done.

        Raises:
            ModelLoadError: If draft model or tokenizer cannot be loaded.
            TokenizerMismatch: If draft, tokenizer and target do not share their token ids.
            LinkError: If the server cannot be reached or refuses.
        """
        self._user.connect()

    def use_network(self, setting: NetworkSetting) -> None:
        """Shape the link from here on, in place of the configuration's first network setting.

        A connection with other conditions is closed; the next request makes a new one.
        """
        self._user.use_network(setting)

    def measure_rtt(self) -> float:
        """Return the median seconds of an empty round trip to the server."""
        target = self._user.connect()
        return statistics.median(target.ping() for _ in range(PINGS))

    def profile(self, *, refresh: bool = False) -> str:
        """Measure what autodraft needs to know of draft, target and link; return it in words.

        Takes about a minute, once for a pair; the first request of the method ``autodraft`` does it
        where it was not done. What is kept lies in the data folder.

        Args:
            refresh: Measure again what is on disk.

        Raises:
            ProfileError: If it cannot be measured or kept.
            LinkError: If the link or the server fails.
        """
        return describe_pair(self._user.profile(refresh=refresh))

    def devices(self) -> Devices:
        """Return the latency tables of both machines, measured first where that was not done.

        ``autodraft.simulate`` runs over them; raises as ``profile``.
        """
        self._user.profile()
        return self._tradeoffs.devices()

    def forecast(
        self,
        slo: SloConfig | Mapping[str, float],
        cs: float | str | None = None,
        *,
        spec: MethodSpec | None = None,
    ) -> list[Forecast]:
        """Return what is to be expected of limits, by the profile of pair and link.

        Args:
            slo: The limits.
            cs: Cost sensitivity beside them, as for ``run``.
            spec: autodraft with its own ceilings, in place of the configuration's.

        Returns:
            For each limit the best value that is attainable, and whether that meets it.

        Raises:
            ConfigError: If there is no such limit, or none is given.
            ProfileError: If the profile cannot be measured or kept.
            LinkError: If the link or the server fails.
        """
        base = spec or self._config.adaptive(sensitivity(cs))
        wanted = base.model_copy(update={"slo": limits_given(slo)})
        if not wanted.slo.limits:
            raise ConfigError("No limit is given. " + ALLOWED_LIMITS)
        self._user.profile()
        return list(self._tradeoffs.aim(wanted).forecasts)

    def tradeoff(
        self,
        cs: Sequence[float] = REFERENCE_CS,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
    ) -> list[CurvePoint]:
        """Return the predicted trade-off between speed and the objective, from the pair's profile.

        Simulated once for a pair, a link and prices, then kept in the data folder.

        Args:
            cs: Cost sensitivities, each from 0 to 1.
            max_new_tokens: Most tokens of an answer; those of the profile have 48 at most.

        Raises:
            ProfileError: If the profile cannot be measured or kept, or a kept curve is damaged.
            LinkError: If the link or the server fails.
        """
        self._user.profile()
        return self._tradeoffs.predicted(cs, max_new_tokens)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Return a chat's token ids in the target's own template, the answer's opening added."""
        return self._tokenizer().encode_chat(messages)

    def encode_text(self, text: str) -> list[int]:
        """Return a text's token ids as the target's tokenizer has them, without a template."""
        return self._tokenizer().encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        return self._tokenizer().decode(token_ids)

    def run(  # noqa: PLR0913 - keyword options that users know by these names
        self,
        input_text: str | None = None,
        *,
        messages: Messages | None = None,
        prompt_ids: Sequence[int] | None = None,
        method: MethodSpec | str = DEFAULT_METHOD,
        cs: float | str | None = None,
        slo: SloConfig | Mapping[str, float] | None = None,
        proactive: bool = False,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
        exact: bool | None = None,
        top_logprobs: int | None = None,
        reuse_prefix: bool = True,
        cancelled: Callable[[], bool] | None = None,
        save_tradeoff: bool = False,
        tradeoff_dir: str | Path | None = None,
    ) -> GenerationResult:
        """Answer one prompt; connects first where that has not been done.

        Args:
            input_text: A user's turn, put into the chat template.
            messages: A whole chat instead, each with ``role`` and ``content``.
            prompt_ids: Token ids instead, taken as they are.
            method: Method id, or a method with limits of its own.
            cs: Cost sensitivity of ``autodraft``: from 0 (speed first) to 1 (objective first), or
                ``tps``, ``balanced``, ``cost``; None is balanced. No other method takes one.
            slo: Limits beside it, held on average from answer to answer, for example
                ``{"min_tokens_per_s": 20}``; also ``max_cost_per_1m_tokens``, ``max_tpot_ms``,
                ``max_ttft_ms``. ``forecast`` says what is to be expected of them.
            proactive: Draft ahead while the target verifies, where that pays (``autodraft``).
            max_new_tokens: Most tokens of the answer.
            stop: Strings that end the answer; its text is cut before them.
            sampling: How tokens are chosen; greedy without it.
            exact: Narrow the gap that rounding below float32 leaves between the methods' answers;
                None where the server finds it worth its time.
            top_logprobs: Return with every token how surely it was chosen, its log-probability and
                those of so many of the likeliest tokens; None returns nothing of it.
            reuse_prefix: Forward only what is new behind the last answer of this engine, and leave
                the same for the next: a chat's next turn begins sooner.
            cancelled: Asked after every block of tokens; once it says yes the answer ends there.
            save_tradeoff: Add the answer of ``autodraft`` to the trade-off curve of its pair, link
                and objective, and write that as JSON and PNG; no other method has one.
            tradeoff_dir: Where to; None is ``tradeoff/`` in the folder of ``AUTODRAFT_DATA_DIR``.

        Raises:
            ValueError: If not exactly one of the three prompts is given, or a limit is wrong.
            ConfigError: If there is no such method.
            ContextLengthError: If the prompt leaves no room for an answer.
            LinkError: If the link or the server fails.
        """
        prompt = self._prompt(input_text, messages, prompt_ids)
        wish = Wish(sampling or GREEDY, exact, top_logprobs, reuse_prefix)
        limits = Limits(max_new_tokens, stop, cancelled or never)
        spec = self._spec(method, cs, slo, proactive)
        if save_tradeoff and spec.cs is None:
            raise ValueError(f"save_tradeoff=True is for method='{ADAPTIVE}' alone. Leave it out.")
        request = self._request(prompt, spec, wish, limits)
        with self._link_dropped_on_error():
            token_ids = [token for block in request for token in block]
        if save_tradeoff:
            where = None if tradeoff_dir is None else Path(tradeoff_dir)
            self._tradeoffs.save(spec, request.record, where)
        text = StopText(stop)
        limits_met = self._tradeoffs.reports(spec, request.record)
        return _result(text.push(self.decode(token_ids)) + text.flush(), request, limits_met)

    def stream(  # noqa: PLR0913 - keyword options that users know by these names
        self,
        input_text: str | None = None,
        *,
        messages: Messages | None = None,
        prompt_ids: Sequence[int] | None = None,
        method: MethodSpec | str = DEFAULT_METHOD,
        cs: float | str | None = None,
        slo: SloConfig | Mapping[str, float] | None = None,
        proactive: bool = False,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
        exact: bool | None = None,
        top_logprobs: int | None = None,
        reuse_prefix: bool = True,
        cancelled: Callable[[], bool] | None = None,
        on_end: Callable[[GenerationResult], None] | None = None,
    ) -> Iterator[str]:
        """Answer one prompt and yield its text as it becomes certain; raises as ``run`` does.

        Args:
            input_text: A user's turn, put into the chat template.
            messages: A whole chat instead, each with ``role`` and ``content``.
            prompt_ids: Token ids instead, taken as they are.
            method: Method id, or a method with limits of its own.
            cs: Cost sensitivity of ``autodraft``: from 0 (speed first) to 1 (objective first), or
                ``tps``, ``balanced``, ``cost``; None is balanced. No other method takes one.
            slo: Limits beside it, held on average from answer to answer, for example
                ``{"min_tokens_per_s": 20}``; also ``max_cost_per_1m_tokens``, ``max_tpot_ms``,
                ``max_ttft_ms``. ``forecast`` says what is to be expected of them.
            proactive: Draft ahead while the target verifies, where that pays (``autodraft``).
            max_new_tokens: Most tokens of the answer.
            stop: Strings that end the answer; its text is cut before them.
            sampling: How tokens are chosen; greedy without it.
            exact: Narrow the gap that rounding below float32 leaves between the methods' answers;
                None where the server finds it worth its time.
            top_logprobs: Return with every token how surely it was chosen, its log-probability and
                those of so many of the likeliest tokens; None returns nothing of it.
            reuse_prefix: Forward only what is new behind the last answer of this engine, and leave
                the same for the next: a chat's next turn begins sooner.
            cancelled: Asked after every block of tokens; once it says yes the answer ends there.
            on_end: Called with the whole result when the answer has ended.
        """
        prompt = self._prompt(input_text, messages, prompt_ids)
        wish = Wish(sampling or GREEDY, exact, top_logprobs, reuse_prefix)
        limits = Limits(max_new_tokens, stop, cancelled or never)
        spec = self._spec(method, cs, slo, proactive)
        request = self._request(prompt, spec, wish, limits)
        text, until_stop, pieces = TextStream(self.decode), StopText(stop), []
        with self._link_dropped_on_error():
            for block in request:
                if piece := until_stop.push(text.push(block)):
                    pieces.append(piece)
                    yield piece
        if piece := until_stop.push(text.flush()) + until_stop.flush():
            pieces.append(piece)
            yield piece
        if on_end is not None:
            limits_met = self._tradeoffs.reports(spec, request.record)
            on_end(_result("".join(pieces), request, limits_met))

    def trace(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Trace:
        """Return what the draft model would have said at each place of an answer, greedily.

        Args:
            prompt_ids: Token ids of the prompt.
            output_ids: Those of the answer, for example ``GenerationResult.token_ids``.

        Raises:
            ValueError: If one is empty, or the prompt alone fills the draft model's context.
            ModelLoadError: If the draft model cannot be loaded.
            LinkError: If the server cannot be reached or refuses.
        """
        return self._user.trace(prompt_ids, output_ids)

    def describe(self) -> dict[str, Any]:
        """Return models, devices, energy meters and versions of both sides, for a manifest.

        ``draft`` is None as long as no draft model was needed here.
        """
        return self._user.describe()

    def close(self) -> None:
        """Close the link; the loaded models stay for the next connection. Safe to call twice."""
        self._user.close()

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

    def _tokenizer(self) -> Tokenizer:
        self._user.connect()
        return self._user.tokenizer

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

    def _spec(
        self,
        method: MethodSpec | str,
        cs: float | str | None,
        slo: SloConfig | Mapping[str, float] | None,
        proactive: bool,
    ) -> MethodSpec:
        """Return the method that is asked for; only one that adapts takes the other three."""
        if isinstance(method, str) and method.removesuffix(AT_SERVER) == ADAPTIVE:
            spec = self._config.adaptive(sensitivity(cs), name=method, proactive=proactive)
            given = {} if slo is None else {"slo": limits_given(slo)}
            return spec.model_copy(update=given)
        for name, value in (("cs", cs), ("slo", slo), ("proactive", proactive or None)):
            if value is not None:
                raise ValueError(
                    f"{name}={value!r} is for method='{ADAPTIVE}' given by name. Leave it out."
                )
        return self._config.method(method) if isinstance(method, str) else method

    def _request(self, prompt: list[int], spec: MethodSpec, wish: Wish, limits: Limits) -> Request:
        spec.require_available()
        if limits.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {limits.max_new_tokens}; it must be at least 1.")
        require_stop_strings(limits.stop)
        target = self._user.prepare_for(spec)
        welcome = target.welcome
        limit = answer_limit(limits.max_new_tokens, len(prompt), welcome.max_context)
        if not prompt or limit < 1:
            raise ContextLengthError(
                f"The prompt has {len(prompt)} tokens; {welcome.model} on this server takes "
                f"1 to {welcome.max_context - 1}. Shorten it, or start the server with a "
                "larger --max-context where the model allows it."
            )
        require_known_tokens(wish.sampling, welcome.vocab_size)
        self._tradeoffs.begin(spec)
        rules = StopRules(frozenset(welcome.eos_ids), limit, tuple(limits.stop))
        decoder = make_method(spec, self._user.side, wish, rules.eos_ids)
        meters, decode = self._user.meters(), self._user.tokenizer.decode
        return Request(target, decoder, prompt, rules, meters, decode, wish, limits.cancelled)

    @contextlib.contextmanager
    def _link_dropped_on_error(self) -> Iterator[None]:
        """Close a link that an error left in the middle of something; the next run reconnects."""
        try:
            yield
        except (AutodraftError, KeyboardInterrupt):
            self._user.disconnect()
            raise


def _result(text: str, request: Request, limits: list[LimitReport] | None) -> GenerationResult:
    record = request.record
    return GenerationResult(
        text=text,
        token_ids=list(record.output_ids),
        finish_reason=record.finish_reason,
        request=record,
        rounds=request.rounds,
        scores=request.scores,
        limits=limits,
    )
