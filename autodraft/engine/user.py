"""The user's side of a pair: draft model, tokenizer, energy meter, and the link to the target.

What is loaded stays loaded; the link is made on demand and made again after it was closed, lost or
set to other conditions. Requests are made elsewhere.
"""

import platform
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec

from autodraft import __version__
from autodraft.config import ExperimentConfig, MethodSpec, NetworkSetting
from autodraft.cost import Powers
from autodraft.engine.drafter import Drafter
from autodraft.engine.energy import MachineMeter, machine_meter
from autodraft.engine.methods import DraftSide
from autodraft.engine.profiler import draft_table, measure_link, target_key, target_table
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.rounds import Meters
from autodraft.engine.survey import MeasuredPowers, Survey, stored_survey, survey
from autodraft.engine.tracing import trace_answer
from autodraft.errors import TokenizerMismatch
from autodraft.meters import ModelledMeter
from autodraft.models.hardware import device_label, torch_threads
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from autodraft.models.tokenizer import (
    Tokenizer,
    TokenizerIdentity,
    require_compatible,
    unknown_to_target,
)
from autodraft.policy.pair import Money, Pair, Tables, money_of
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.prompts import PROMPTS
from autodraft.profiling.store import FOLDER
from autodraft.profiling.traces import Trace
from autodraft.protocol.messages import DraftWish, Welcome
from autodraft.settings import client_token, data_dir
from autodraft.transport.client import Link
from autodraft.transport.shaping import LinkShape

_NOT_DESCRIBED = {"added_tokens", "eos_ids", "latencies"}  # times differ from start to start


class Known(NamedTuple):
    """What was found out of a draft here and a target there.

    Attributes:
        key: What it holds for, in words.
        pair: What its requests share.
        tables: Latencies of both sides, as they were measured.
        money: What is paid.
        survey: Of its answers.
    """

    key: str
    pair: Pair
    tables: Tables
    money: Money
    survey: Survey


class UserSide:
    """What one engine drafts with and talks to.

    Attributes:
        side: What its requests draft with.
    """

    def __init__(self, config: ExperimentConfig, token: str | None, hf_token: str | None) -> None:
        """Prepare; nothing is loaded or connected yet."""
        self.side = DraftSide()
        self._config = config
        self._token = token
        self._hf_token = hf_token
        self._network = config.network.settings()[0]
        self._drafts_here = "user" in config.draft_placements
        self._drafts_there = "server" in config.draft_placements
        self._target: RemoteTarget | None = None
        self._draft: LoadedModel | None = None
        self._tokenizer: Tokenizer | None = None
        self._meter: MachineMeter | None = None
        self._known: dict[str, Known] = {}

    def connect(self) -> RemoteTarget:
        """Load what is not loaded yet, connect and shake hands, where that is not done.

        Raises:
            ModelLoadError: If draft model or tokenizer cannot be loaded.
            TokenizerMismatch: If draft, tokenizer and target do not share their token ids.
            LinkError: If the server cannot be reached or refuses.
        """
        if self._target is not None:
            return self._target
        runtime = self._config.runtime
        token = self._token or client_token(runtime.target_host, runtime.target_token_env)
        shape = LinkShape.from_setting(self._network, self._config.sampling.seeds[0])
        # The link comes first: a wrong address should show before minutes of loading.
        link = Link(runtime.target_host, runtime.target_port, token, shape)
        try:
            target = RemoteTarget(link, self._wish())
            self._load(target.welcome)
        except BaseException:
            link.close()
            raise
        self._target = target
        return target

    def use_network(self, setting: NetworkSetting) -> None:
        """Shape the link from here on; a connection with other conditions is closed."""
        if setting != self._network:
            self.disconnect()
            self._network = setting

    def prepare_for(self, spec: MethodSpec) -> RemoteTarget:
        """Connect, with a draft model where the method drafts; raises as ``connect`` does."""
        if spec.needs_draft_model and spec.placement == "server" and not self._drafts_there:
            self._drafts_there = True
            self.disconnect()
        target = self.connect()
        if spec.needs_draft_model and spec.placement == "user":
            if self.side.runner is None:
                self._load_draft(target.welcome)
            if spec.cs is not None and self.side.pair is None:
                self.side.pair = self._paired(target, self._config.tree.force_profile_refresh)
        return target

    def profile(self, *, refresh: bool = False) -> Pair:
        """Connect, and find out about the pair what is not known, or all of it again.

        Raises:
            ProfileError: If it cannot be found out or kept.
            LinkError: If the link or the server fails.
        """
        target = self.connect()
        if self.side.runner is None:
            self._load_draft(target.welcome)
        if refresh or self.side.pair is None:
            self._known.clear()
            self.side.pair = self._paired(target, refresh)
        return self.side.pair

    @property
    def known(self) -> Known:
        """What is known of the present pair; ``profile`` has found it out."""
        return next(known for known in self._known.values() if known.pair is self.side.pair)

    def trace(self, prompt: Sequence[int], output: Sequence[int]) -> Trace:
        """Connect, and return what the draft model says of an answer; raises as ``connect`` does.

        Raises:
            ValueError: As ``trace_answer``.
        """
        target = self.connect()
        if self.side.runner is None:
            self._load_draft(target.welcome)
        return self._traced(target, prompt, output)

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer; ``connect`` has loaded it."""
        assert self._tokenizer is not None
        return self._tokenizer

    def meters(self) -> Meters:
        """Return the energy meters of both sides.

        The target's is a model of it, for a server that has no counter of its own to report.
        """
        objective = self._config.objective
        if self._meter is None:
            models = [self._draft] if self._draft else []
            self._meter = machine_meter(models, objective.draft_watts, objective.draft_idle_watts)
        target = self.connect()
        modelled = ModelledMeter(objective.target_watts, objective.target_idle_watts)
        counted = target.welcome.energy_method != modelled.method
        return Meters(self._meter.meter, None if counted else modelled)

    def describe(self) -> dict[str, Any]:
        """Return models, devices, meters and versions of both sides, for a manifest.

        ``draft`` is None as long as no draft model was needed here.
        """
        welcome = self.connect().welcome
        self.meters()
        assert self._meter is not None
        target = msgspec.structs.asdict(welcome)
        target["draft"] = welcome.draft and msgspec.structs.asdict(welcome.draft)
        draft, runtime = self._draft, self._config.runtime
        return {
            "target": {name: value for name, value in target.items() if name not in _NOT_DESCRIBED},
            "draft": draft and _described(draft, runtime.draft_device_name),
            "tokenizer": self.tokenizer.name,
            "normalisers": self._normalisers(),
            "draft_energy": {
                "method": self._meter.meter.method,
                "reason": self._meter.reason,
                "idle_watts": self._meter.idle_watts,
            },
            "client": {
                "autodraft": __version__,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "torch_threads": torch_threads(),
                **{name: version(name) for name in ("torch", "transformers", "numpy")},
            },
        }

    def _normalisers(self) -> dict[str, dict[str, float]] | None:
        """Return τ and κ of each objective; None as long as no method needed them."""
        pair = self.side.pair
        if pair is None:
            return None
        names = self._config.objective.objective_metrics
        return {name: pair.normalisers(name)._asdict() for name in names}

    def disconnect(self) -> None:
        """Close the link, where there is one; nothing is left for a next answer."""
        self.side.pair = None  # its link was this one
        self.side.kept.drop()
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def close(self) -> None:
        """Close link and energy meter; the models stay loaded. Safe to call twice."""
        self.disconnect()
        self._forget_meter()

    def _wish(self) -> TargetWish:
        models = self._config.models
        draft = None
        if self._drafts_there:
            draft = DraftWish(models.draft_model_path, models.draft_quantization, models.dtype)
        return TargetWish(
            self._config.runtime.server_name,
            models.base_model_path,
            models.target_quantization,
            models.target_dtype,
            draft,
        )

    def _load(self, welcome: Welcome) -> None:
        models = self._config.models
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(models.tokenizer_path, hf_token=self._hf_token)
        if self._tokenizer.fingerprint() != welcome.tokenizer_hash:
            raise TokenizerMismatch(
                f"The tokenizer {models.tokenizer_path!r} is not that of the target "
                f"{welcome.model!r} on the server. Correct TOKENIZER_PATH, or leave it out."
            )
        self.side.runner = None  # what it was checked against was another connection's target
        if self._drafts_here:
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
            self._forget_meter()  # the devices in use are others now
        theirs = TokenizerIdentity(welcome.tokenizer_hash, welcome.added_tokens)
        ours = self._draft.tokenizer.identity
        names = {"target_name": welcome.model, "draft_name": models.draft_model_path}
        require_compatible(theirs, ours, **names)
        rows = (welcome.vocab_size, self._draft.runner.vocab_size)
        self.side.excluded = unknown_to_target(theirs, ours, *rows)
        self.side.runner = self._draft.runner

    def _paired(self, target: RemoteTarget, refresh: bool) -> Pair:
        """Return the pair over the present link; what it has learned is kept from link to link."""
        assert self._draft is not None
        link = measure_link(target)
        key = f"{self._draft.profile_key} + {target_key(target.welcome)}"
        if key not in self._known:
            self._known[key] = self._found_out(target, link, key, refresh)
        pair = self._known[key].pair
        pair.relink(link)
        return pair

    def _found_out(
        self, target: RemoteTarget, link: LinkEstimate, key: str, refresh: bool
    ) -> Known:
        assert self._draft is not None
        tree, folder = self._config.tree, data_dir() / FOLDER
        how = {"refresh": refresh, "allowed": not tree.disable_auto_profile}
        widths, calls = tree.draft_profile_width_list, tree.draft_profile_model_calls_per_count
        draft = draft_table(self._draft, folder, widths, calls, **how)
        nodes, calls = tree.target_profile_node_list, tree.target_profile_model_calls_per_count
        tables = Tables(draft, target_table(target, folder, nodes, calls, **how))
        found = stored_survey(folder, key, lambda: self._survey(target), **how)
        money = money_of(self._config.objective, self._powers(target, found.powers))
        pair = Pair(tables, found.prior, link, money, fixed=tree.disable_online_profile_update)
        return Known(key, pair, tables, money, found)

    def _survey(self, target: RemoteTarget) -> Survey:
        assert self._draft is not None
        meters = self.meters()
        assert self._meter is not None
        prompts = (
            self.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in PROMPTS
        )
        drafter = Drafter(self._draft.runner, self.side.excluded)
        return survey(
            target, drafter, prompts, meters, self._meter.idle_watts, partial(self._traced, target)
        )

    def _traced(self, target: RemoteTarget, prompt: Sequence[int], output: Sequence[int]) -> Trace:
        assert self.side.runner is not None, "the draft model is loaded before it is asked"
        trace = trace_answer(self.side.runner, self.side.excluded, prompt, output)
        draft = self._config.models.draft_model_path
        return msgspec.structs.replace(trace, target=target.welcome.model, draft=draft)

    def _powers(self, target: RemoteTarget, measured: MeasuredPowers) -> Powers:
        """Return what the machines draw: by their counters, else by the configuration."""
        objective, meters = self._config.objective, self.meters()
        assert self._meter is not None
        modelled = ModelledMeter(objective.draft_watts, objective.draft_idle_watts)
        here = meters.draft is not None and meters.draft.method != modelled.method
        there = target.welcome.energy_method != modelled.method
        return Powers(
            draft_watts=measured.draft_watts if here else objective.draft_watts,
            draft_idle_watts=self._meter.idle_watts if here else objective.draft_idle_watts,
            target_watts=measured.target_watts if there else objective.target_watts,
            target_idle_watts=(
                measured.target_idle_watts if there else objective.target_idle_watts
            ),
        )

    def _forget_meter(self) -> None:
        chosen, self._meter = self._meter, None
        if chosen is not None:
            chosen.meter.close()


def _described(draft: LoadedModel, device_name: str | None) -> dict[str, Any]:
    return {
        "model": draft.source.name,
        "revision": draft.revision,
        "quantization": draft.source.quantization,
        "dtype": draft.runner.dtype,
        "device": draft.runner.device,
        "device_name": device_name or device_label(draft.runner.device),
        "profile": draft.profile_key,
    }
