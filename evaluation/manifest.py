"""The manifest of a run: where it comes from, and what each of its sessions ran on.

A run that was ended and goes on has several sessions. They must have the same models in the same
form on the same kind of device, the same questions and the same shapes; else their figures would
not be one experiment's. This module computes no figure.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from autodraft.config import NetworkSetting
from autodraft.config_io import LoadedConfig
from autodraft.errors import StoreError
from autodraft.records import SCHEMA_VERSION
from evaluation.plan import Plan, Questions, fixed_part
from evaluation.provenance import now, provenance
from evaluation.store import RunStore

_SIDES: Final = ("target", "draft")
_MUST_STAY: Final = ("model", "revision", "quantization", "dtype", "device")
_RUNNING: Final = "running"


class Manifest:
    """``manifest.json``, kept up to date on disk."""

    def __init__(self, store: RunStore, data: dict[str, Any]) -> None:
        """Take what is in it; `new_manifest` and `continued_manifest` make it."""
        self._store = store
        self._data = data
        self._session: dict[str, Any] = {}

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """The sessions, the first one first."""
        sessions: list[dict[str, Any]] = self._data["sessions"]
        return sessions

    def begin_session(self, argv: Sequence[str]) -> list[str]:
        """Note that a session begins.

        Args:
            argv: The command line.

        Returns:
            What a user should know: that the code is another than an earlier session's.
        """
        self._session = {
            "started_at": now(),
            "ended_at": None,
            "status": _RUNNING,
            **provenance(argv),
            "rtt_s": {},
            "engine": None,
        }
        warnings = []
        if self.sessions and self.sessions[-1]["commit"] != self._session["commit"]:
            warnings.append(
                "The run was begun with another commit of AutoDraft "
                f"({self.sessions[-1]['commit']} before, {self._session['commit']} now). The "
                "manifest names both."
            )
        for earlier in self.sessions:
            if earlier["status"] == _RUNNING:  # it had no time to say how it ended
                earlier["status"] = "killed"
        self.sessions.append(self._session)
        self._data["status"] = _RUNNING
        self._write()
        return warnings

    def check_engine(self, described: Mapping[str, Any]) -> None:
        """Note what the session runs on, if that is what the run began with.

        Raises:
            StoreError: If it is not.
        """
        engine = json.loads(json.dumps(described))
        first = next((each["engine"] for each in self.sessions if each["engine"]), None)
        if first is not None and (differing := _engine_differences(first, engine)):
            raise StoreError(
                f"The run {self._store.run_id} cannot go on with these models: "
                f"{'; '.join(differing)}. Use what it began with, or begin a run of its own with "
                "--fresh."
            )
        if self._session["engine"] is None:
            self._session["engine"] = engine
            self._write()

    def set_sources(self, sources: Mapping[str, str]) -> None:
        """Note where the questions of each benchmark come from: file, checksum and what it is."""
        self._data["question_files"] = dict(sources)
        self._write()

    def set_rtt(self, network: NetworkSetting, rtt_s: float) -> None:
        """Note the round trip time that was measured over a link."""
        self._session["rtt_s"][network.label] = rtt_s
        self._write()

    def end_session(self, status: str) -> None:
        """Note how the session ended."""
        self._session |= {"ended_at": now(), "status": status}
        self._data["status"] = status
        self._write()

    def conclude(self, status: str, energy_methods: Sequence[str]) -> None:
        """Note what the tables were made from, and how the run stands."""
        self._data |= {"status": status, "energy_methods": list(energy_methods)}
        self._write()

    def require_same(self, plan: Plan, questions: Questions) -> None:
        """Do nothing if questions and shapes are those that the run began with.

        Raises:
            StoreError: If they are not.
        """
        now_fixed = json.loads(json.dumps(fixed_part(plan, questions)))
        for what, value in now_fixed.items():
            before = self._data.get(what)
            if before != value:
                changed = ", ".join(_changed(before, value))
                raise StoreError(
                    f"The run {self._store.run_id} cannot go on: its {what} have changed since it "
                    f"began ({changed}). Begin a run of its own with --fresh."
                )

    def _write(self) -> None:
        self._store.write_manifest(self._data)


def new_manifest(
    loaded: LoadedConfig, plan: Plan, questions: Questions, store: RunStore
) -> Manifest:
    """Make the manifest of a run that begins, and put it on disk."""
    config = loaded.config
    objective = config.objective
    manifest = Manifest(
        store,
        {
            "schema_version": SCHEMA_VERSION,
            "run_id": store.run_id,
            "status": _RUNNING,
            "config": str(loaded.source),
            "warnings": [*loaded.warnings, *plan.notes],
            **fixed_part(plan, questions),
            "networks": [network.label for network in plan.networks],
            "seeds": list(config.seeds()),
            "choices": len(config.choices()),
            "repeats": config.run.repeats,
            "objectives": list(objective.objective_metrics),
            "billing": objective.billing,
            "prices": {
                "TARGET_PER_HOUR_COST": objective.target_per_hour_cost,
                "DRAFT_ELECTRICITY_COST_PER_KWH": objective.draft_electricity_cost_per_kwh,
                "USER_COMM_COST_PER_GB": objective.user_comm_cost_per_gb,
                "CLOUD_OUTBOUND_COST_PER_GB": objective.cloud_outbound_cost_per_gb,
                "DRAFT_PER_HOUR_COST": objective.draft_per_hour_cost,
            },
            "sessions": [],
        },
    )
    manifest._write()
    return manifest


def continued_manifest(
    loaded: LoadedConfig, plan: Plan, questions: Questions, store: RunStore
) -> Manifest:
    """Take up the manifest of a run that goes on; where it was killed too early, make it.

    Raises:
        StoreError: If questions or shapes are not those that the run began with.
    """
    data = store.read_manifest()
    if data is None:
        return new_manifest(loaded, plan, questions, store)
    manifest = Manifest(store, data)
    manifest.require_same(plan, questions)
    return manifest


def _engine_differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    found = []
    for side, before, after in _sides(first, other):
        for name in _MUST_STAY:
            if before.get(name) != after.get(name):
                found.append(f"{side} {name} was {before.get(name)}, is {after.get(name)}")
    return found


def _sides(
    first: Mapping[str, Any], other: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Return target, draft and the server's own draft of two descriptions; empty where missing."""
    sides = [(side, first.get(side) or {}, other.get(side) or {}) for side in _SIDES]
    _, before, after = sides[0]
    return [*sides, ("server's draft", before.get("draft") or {}, after.get("draft") or {})]


def _changed(before: Any, after: Any) -> list[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        return [str(key) for key in after if before.get(key) != after[key]]
    labels = [f"{each['label']} on {each['bench']}" for each in after if each not in (before or [])]
    return labels or ["fewer than before"]
