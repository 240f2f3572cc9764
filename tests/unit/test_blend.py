"""What each second and byte of a round weighs, against sums worked out by hand."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.cost import (
    OBJECTIVES,
    SECONDS,
    Phases,
    Powers,
    Prices,
    Quantities,
    blend,
    objective_units,
    phase_units,
)
from autodraft.errors import ConfigError

PRICES = Prices(
    target_per_hour_usd=7.2,  # 0.002 $ a second
    electricity_usd_per_kwh=0.36,  # 1e-7 $ a joule
    uplink_usd_per_gb=0.5,
    downlink_usd_per_gb=0.25,
)
RENTED = dataclasses.replace(PRICES, draft_per_hour_usd=3.6)  # 0.001 $ a second
FREE = Prices(
    target_per_hour_usd=0.0,
    electricity_usd_per_kwh=0.0,
    uplink_usd_per_gb=0.0,
    downlink_usd_per_gb=0.0,
)
POWERS = Powers(draft_watts=60, draft_idle_watts=20, target_watts=400, target_idle_watts=100)
UNKNOWN = Powers(draft_watts=None, draft_idle_watts=None, target_watts=None, target_idle_watts=None)
BILLINGS = ("busy", "held")


def of_seconds(phases: Phases) -> tuple[float, ...]:
    """Return a second of drafting, verifying, waiting, plain and server-only decoding."""
    return (
        phases.draft_s,
        phases.verify_s,
        phases.wait_s,
        phases.plain_s,
        phases.server_only_s,
    )


@pytest.mark.parametrize(
    ("prices", "billing", "seconds"),
    [
        # Electricity: 6e-6 $ a second of drafting, 2e-6 $ idle; none without the device.
        (PRICES, "busy", (0.000006, 0.002002, 0.000002, 0.002002, 0.002)),
        (PRICES, "held", (0.002006, 0.002002, 0.002002, 0.002002, 0.002)),
        # Rent instead of electricity: 0.001 $ whatever the device does.
        (RENTED, "busy", (0.001, 0.003, 0.001, 0.003, 0.002)),
        (RENTED, "held", (0.003, 0.003, 0.003, 0.003, 0.002)),
    ],
)
def test_a_second_of_each_phase_in_dollars(
    prices: Prices, billing: str, seconds: tuple[float, ...]
) -> None:
    phases = phase_units("total_cost", prices, billing, POWERS)
    assert of_seconds(phases) == pytest.approx(seconds, rel=1e-12)
    assert phases.uplink_byte == pytest.approx(5e-10)
    assert phases.downlink_byte == pytest.approx(2.5e-10)


@pytest.mark.parametrize(
    ("objective", "seconds"),
    [
        ("api_cost", (0, 0.002, 0, 0.002, 0.002)),
        ("draft_energy", (60, 20, 20, 20, 0)),
        ("target_energy", (100, 400, 100, 400, 400)),
    ],
)
def test_a_second_of_each_phase_without_bytes(objective: str, seconds: tuple[float, ...]) -> None:
    phases = phase_units(objective, PRICES, "busy", POWERS)
    assert of_seconds(phases) == pytest.approx(seconds, rel=1e-12)
    assert (phases.uplink_byte, phases.downlink_byte) == (0, 0)


@pytest.mark.parametrize(
    ("objective", "prices", "billing", "seconds"),
    [
        ("total_cost", PRICES, "busy", (0.002, 0.002, 0, 0.002, 0.002)),
        ("total_cost", PRICES, "held", (0.002, 0.002, 0.002, 0.002, 0.002)),
        ("total_cost", RENTED, "busy", (0.002, 0.002, 0, 0.002, 0.002)),
        ("api_cost", PRICES, "busy", (0.002, 0.002, 0, 0.002, 0.002)),
        ("draft_energy", PRICES, "busy", (0, 0, 0, 0, 0)),
        ("target_energy", PRICES, "busy", (400, 400, 100, 400, 400)),
    ],
)
def test_on_the_server_drafting_is_the_targets_work_and_the_device_takes_no_part(
    objective: str, prices: Prices, billing: str, seconds: tuple[float, ...]
) -> None:
    phases = phase_units(objective, prices, billing, POWERS, on_server=True)
    assert of_seconds(phases) == pytest.approx(seconds, rel=1e-12)


_SECONDS = st.floats(0, 1e3)


@given(
    objective=st.sampled_from(OBJECTIVES),
    prices=st.sampled_from([PRICES, RENTED]),
    billing=st.sampled_from(BILLINGS),
    seconds=st.tuples(_SECONDS, _SECONDS, _SECONDS),
    sizes=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
)
def test_a_round_weighs_what_its_quantities_cost(
    objective: str,
    prices: Prices,
    billing: str,
    seconds: tuple[float, float, float],
    sizes: tuple[int, int],
) -> None:
    draft_s, verify_s, wait_s = seconds
    used = Quantities(
        output_tokens=1,
        target_busy_s=verify_s,
        target_held_s=sum(seconds),
        total_s=sum(seconds),
        draft_j=60 * draft_s + 20 * (verify_s + wait_s),
        target_j=400 * verify_s + 100 * (draft_s + wait_s),
        uplink_bytes=sizes[0],
        downlink_bytes=sizes[1],
    )
    phases = phase_units(objective, prices, billing, POWERS)
    expected = objective_units(objective, used, prices, billing)
    assert phases.of_round(*seconds, *sizes) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_a_round_adds_up_by_hand() -> None:
    phases = Phases(
        draft_s=1,
        verify_s=10,
        wait_s=100,
        uplink_byte=1000,
        downlink_byte=10_000,
        plain_s=7,
        server_only_s=8,
    )
    assert phases.of_round(2, 3, 4, 5, 6) == 2 + 30 + 400 + 5000 + 60_000
    assert phases.of_round(2, 3, 4) == 432


@pytest.mark.parametrize("objective", ["total_cost", "api_cost", "target_energy"])
@pytest.mark.parametrize("billing", BILLINGS)
@pytest.mark.parametrize("cs", [0.0, 0.25, 0.5, 1.0])
def test_server_only_costs_one_a_token(objective: str, billing: str, cs: float) -> None:
    units = phase_units(objective, PRICES, billing, POWERS)
    tau_s = 0.03
    weighed = blend(units, cs, tau_s, kappa=units.server_only_s * tau_s)
    assert weighed.server_only_s * tau_s == pytest.approx(1.0, rel=1e-12)


def test_speed_alone_counts_seconds_and_no_bytes() -> None:
    weighed = blend(phase_units("total_cost", PRICES, "held", POWERS), 0.0, 0.05, kappa=1e-4)
    assert of_seconds(weighed) == pytest.approx((20, 20, 20, 20, 20))
    assert (weighed.uplink_byte, weighed.downlink_byte) == (0, 0)


def test_the_objective_alone_counts_units() -> None:
    units = phase_units("target_energy", PRICES, "busy", POWERS)
    # τ plays no part: joules over the 8 J of a server-only token.
    assert of_seconds(blend(units, 1.0, 123.0, kappa=8.0)) == pytest.approx(
        (12.5, 50, 12.5, 50, 50)
    )


def test_a_blend_of_both_by_hand() -> None:
    # a = 0.75 / 0.05 s = 15 a second; b = 0.25 / 1e-4 $ = 2500 a dollar.
    weighed = blend(phase_units("total_cost", PRICES, "busy", POWERS), 0.25, 0.05, kappa=1e-4)
    assert of_seconds(weighed) == pytest.approx((15.015, 20.005, 15.005, 20.005, 20.0))
    assert weighed.uplink_byte == pytest.approx(2500 * 5e-10)
    assert weighed.downlink_byte == pytest.approx(2500 * 2.5e-10)


def test_a_price_of_nothing_leaves_time() -> None:
    units = phase_units("total_cost", FREE, "busy", POWERS)
    assert of_seconds(units) == (0, 0, 0, 0, 0)
    weighed = blend(units, 0.0, tau_s=0.5, kappa=0.0)  # κ is 0, and plays no part
    assert of_seconds(weighed) == (2, 2, 2, 2, 2)
    assert of_seconds(SECONDS) == (1, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("objective", "unknown"),
    [
        ("total_cost", "draft_watts"),
        ("total_cost", "draft_idle_watts"),
        ("draft_energy", "draft_watts"),
        ("draft_energy", "draft_idle_watts"),
        ("target_energy", "target_watts"),
        ("target_energy", "target_idle_watts"),
    ],
)
def test_a_power_that_is_needed_and_not_known_is_an_error(objective: str, unknown: str) -> None:
    powers = dataclasses.replace(POWERS, **{unknown: None})
    with pytest.raises(ConfigError, match=rf"{objective}.*{unknown.upper()}"):
        phase_units(objective, PRICES, "busy", powers)


@pytest.mark.parametrize(
    ("objective", "prices", "on_server"),
    [
        ("api_cost", PRICES, False),
        ("total_cost", RENTED, False),  # rent needs no reading
        ("total_cost", PRICES, True),  # the device takes no part
        ("draft_energy", PRICES, True),
    ],
)
def test_a_power_that_is_not_needed_need_not_be_known(
    objective: str, prices: Prices, on_server: bool
) -> None:
    known = phase_units(objective, prices, "busy", POWERS, on_server=on_server)
    assert phase_units(objective, prices, "busy", UNKNOWN, on_server=on_server) == known


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="total_cost, api_cost, draft_energy, target_energy"):
        phase_units("speed", PRICES, "busy", POWERS)
    with pytest.raises(ConfigError, match="busy, held"):
        phase_units("api_cost", PRICES, "wall", POWERS)
