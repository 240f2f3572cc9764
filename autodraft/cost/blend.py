"""Time and objective units in one figure: what each second and each byte of a round weighs.

The user's blend is ``a·T + b·C`` per token with ``a = (1 − cs)/τ`` and ``b = cs/κ`` (DESIGN §5), τ
and κ being server-only's seconds and objective units per token. Cost is linear, so that a round
costs the weight of each of its phases times their length. Knows no table and no tree.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

from autodraft.cost.objective import Prices, Quantities, objective_units
from autodraft.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Powers:
    """What the two machines draw, in watts; None where it is not known.

    Attributes:
        draft_watts: The user's device while it computes.
        draft_idle_watts: The same while it waits.
        target_watts: The target's machine while it computes.
        target_idle_watts: The same while it waits.
    """

    draft_watts: float | None
    draft_idle_watts: float | None
    target_watts: float | None
    target_idle_watts: float | None


@dataclass(frozen=True, kw_only=True)
class Phases:
    """What one second of each phase, and one byte, adds: units of an objective, or a blend.

    Attributes:
        draft_s: A second of drafting.
        verify_s: A second of the target's forward.
        wait_s: A second in which neither computes: the link, or a queue.
        uplink_byte: A byte from the user to the cloud.
        downlink_byte: A byte from the cloud to the user.
        plain_s: A second of plain decoding for a method in which the user's device takes part.
        server_only_s: The same for server-only decoding, in which it takes none.
    """

    draft_s: float
    verify_s: float
    wait_s: float
    uplink_byte: float
    downlink_byte: float
    plain_s: float
    server_only_s: float

    def of_round(
        self,
        draft_s: float,
        verify_s: float,
        wait_s: float,
        uplink_bytes: float = 0,
        downlink_bytes: float = 0,
    ) -> float:
        """Return what a round adds up to."""
        return (
            self.draft_s * draft_s
            + self.verify_s * verify_s
            + self.wait_s * wait_s
            + self.uplink_byte * uplink_bytes
            + self.downlink_byte * downlink_bytes
        )


_NAMES: Final = tuple(field.name for field in fields(Phases))

SECONDS: Final = Phases(
    draft_s=1.0,
    verify_s=1.0,
    wait_s=1.0,
    uplink_byte=0.0,
    downlink_byte=0.0,
    plain_s=1.0,
    server_only_s=1.0,
)
"""Time itself: what bytes take is part of the waiting."""


def phase_units(
    objective: str, prices: Prices, billing: str, powers: Powers, *, on_server: bool = False
) -> Phases:
    """Return the units of an objective that each second and byte costs.

    Args:
        objective: One of ``OBJECTIVES``.
        prices: What the user pays.
        billing: ``busy`` or ``held``.
        powers: What the machines draw.
        on_server: Whether the target's machine drafts, and not the user's device.

    Raises:
        ConfigError: If objective or billing is unknown, or the objective needs a power that is.
    """

    def units(busy: float, draft_w: float | None, target_w: float | None, here: bool) -> float:
        used = Quantities(
            output_tokens=0,
            target_busy_s=busy,
            target_held_s=1.0,
            total_s=float(here),
            draft_j=draft_w if here else 0.0,
            target_j=target_w,
            uplink_bytes=0,
            downlink_bytes=0,
        )
        return _known(objective, objective_units(objective, used, prices, billing))

    here = not on_server
    idle, target, target_idle = (
        powers.draft_idle_watts,
        powers.target_watts,
        powers.target_idle_watts,
    )
    verify = units(1, idle, target, here)
    draft = units(0, powers.draft_watts, target_idle, here) if here else verify
    wait = units(0, idle, target_idle, here)
    up, down = (_of_byte(objective, prices, billing, up) for up in (True, False))
    return Phases(
        draft_s=draft,
        verify_s=verify,
        wait_s=wait,
        uplink_byte=up,
        downlink_byte=down,
        plain_s=verify,
        server_only_s=units(1, None, target, False),
    )


def _of_byte(objective: str, prices: Prices, billing: str, up: bool) -> float:
    used = Quantities(
        output_tokens=0,
        target_busy_s=0,
        target_held_s=0,
        total_s=0,
        draft_j=0,
        target_j=0,
        uplink_bytes=int(up),
        downlink_bytes=int(not up),
    )
    return _known(objective, objective_units(objective, used, prices, billing))


def _known(objective: str, units: float | None) -> float:
    if units is None:
        raise ConfigError(
            f"The objective {objective} cannot be pursued: what a machine draws is not known. Set "
            "DRAFT_WATTS, DRAFT_IDLE_WATTS, TARGET_WATTS and TARGET_IDLE_WATTS, or choose another "
            "objective."
        )
    return units


def weighted(parts: Iterable[tuple[float, Phases]]) -> Phases:
    """Return the sum of phases, each times its weight."""
    found = list(parts)
    return Phases(
        **{name: sum(weight * getattr(each, name) for weight, each in found) for name in _NAMES}
    )


def blend(units: Phases, cs: float, tau_s: float, kappa: float) -> Phases:
    """Return the blended weight of each phase; server-only decoding costs 1 a token.

    Args:
        units: Of the objective.
        cs: Cost sensitivity, 0 … 1.
        tau_s: Server-only's seconds per token.
        kappa: Server-only's units per token; plays no part where ``cs`` is 0.
    """
    a = (1 - cs) / tau_s
    b = cs / kappa if cs else 0.0

    return weighted([(a, SECONDS), (b, units)])
