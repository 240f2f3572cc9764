"""The four objectives, against numbers worked out by hand."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.cost import (
    OBJECTIVE_UNITS,
    OBJECTIVES,
    Prices,
    Quantities,
    cost_of,
    objective_units,
    per_million_tokens,
    per_token,
    sum_quantities,
)
from autodraft.errors import ConfigError

PRICES = Prices(
    target_per_hour_usd=3.6,  # 0.001 $ a second
    electricity_usd_per_kwh=0.36,  # 1e-7 $ a joule
    uplink_usd_per_gb=0.5,
    downlink_usd_per_gb=0.25,
)
USED = Quantities(
    output_tokens=200,
    target_busy_s=10.0,
    target_held_s=25.0,
    total_s=30.0,
    draft_j=1000.0,
    target_j=4000.0,
    uplink_bytes=2_000_000,
    downlink_bytes=8_000_000,
)


def test_every_component_has_its_own_price() -> None:
    cost = cost_of(USED, PRICES, "busy")
    assert cost.target_usd == pytest.approx(0.010, abs=1e-15)
    assert cost.draft_usd == pytest.approx(0.0001, abs=1e-15)
    assert cost.uplink_usd == pytest.approx(0.001, abs=1e-15)
    assert cost.downlink_usd == pytest.approx(0.002, abs=1e-15)
    assert cost.total_usd == pytest.approx(0.0131, abs=1e-15)


def test_held_bills_the_wall_time_of_the_session_and_changes_nothing_else() -> None:
    busy, held = cost_of(USED, PRICES, "busy"), cost_of(USED, PRICES, "held")
    assert held.target_usd == pytest.approx(0.025, abs=1e-15)
    assert dataclasses.replace(held, target_usd=busy.target_usd) == busy


@pytest.mark.parametrize(
    ("objective", "billing", "units"),
    [
        ("total_cost", "busy", 0.0131),
        ("total_cost", "held", 0.0281),
        ("api_cost", "busy", 0.010),
        ("api_cost", "held", 0.025),
        ("draft_energy", "busy", 1000.0),
        ("draft_energy", "held", 1000.0),
        ("target_energy", "busy", 4000.0),
        ("target_energy", "held", 4000.0),
    ],
)
def test_each_objective_by_each_billing(objective: str, billing: str, units: float) -> None:
    assert objective_units(objective, USED, PRICES, billing) == pytest.approx(units, rel=1e-12)


def test_a_rented_device_replaces_electricity_by_its_wall_time() -> None:
    rented = dataclasses.replace(PRICES, draft_per_hour_usd=1.2)
    cost = cost_of(USED, rented, "busy")
    assert cost.draft_usd == pytest.approx(1.2 * 30 / 3600, abs=1e-15)
    assert cost.total_usd == pytest.approx(0.013 + 0.01, abs=1e-15)


def test_a_device_rented_for_nothing_still_replaces_electricity() -> None:
    assert cost_of(USED, dataclasses.replace(PRICES, draft_per_hour_usd=0.0), "busy").draft_usd == 0


def test_energy_that_was_not_measured_makes_the_total_unknown_and_never_zero() -> None:
    used = dataclasses.replace(USED, draft_j=None, target_j=None)
    cost = cost_of(used, PRICES, "busy")
    assert cost.draft_usd is None
    assert cost.total_usd is None
    assert cost.target_usd == pytest.approx(0.010)
    assert objective_units("total_cost", used, PRICES, "busy") is None
    assert objective_units("draft_energy", used, PRICES, "busy") is None
    assert objective_units("target_energy", used, PRICES, "busy") is None
    assert objective_units("api_cost", used, PRICES, "busy") == pytest.approx(0.010)


def test_a_rented_device_needs_no_energy_reading() -> None:
    rented = dataclasses.replace(PRICES, draft_per_hour_usd=1.2)
    assert cost_of(dataclasses.replace(USED, draft_j=None), rented, "busy").total_usd is not None


def test_an_unknown_objective_or_billing_is_refused_with_the_allowed_names() -> None:
    with pytest.raises(ConfigError, match="total_cost, api_cost, draft_energy, target_energy"):
        objective_units("cost", USED, PRICES, "busy")
    with pytest.raises(ConfigError, match="busy, held"):
        cost_of(USED, PRICES, "wall")


def test_dollars_and_joules_are_told_apart() -> None:
    assert OBJECTIVES == ("total_cost", "api_cost", "draft_energy", "target_energy")
    assert list(OBJECTIVE_UNITS.values()) == ["usd", "usd", "j", "j"]


def test_units_are_spread_over_the_output_tokens() -> None:
    assert per_token(4000.0, 200) == 20.0
    assert per_million_tokens(0.0131, 200) == pytest.approx(65.5)
    assert per_token(None, 200) is None
    assert per_million_tokens(1.0, 0) is None


def test_a_sum_adds_every_quantity() -> None:
    assert sum_quantities([USED, USED]) == Quantities(
        output_tokens=400,
        target_busy_s=20.0,
        target_held_s=50.0,
        total_s=60.0,
        draft_j=2000.0,
        target_j=8000.0,
        uplink_bytes=4_000_000,
        downlink_bytes=16_000_000,
    )


def test_a_sum_with_one_unknown_energy_is_unknown() -> None:
    total = sum_quantities([USED, dataclasses.replace(USED, draft_j=None)])
    assert total.draft_j is None
    assert total.target_j == 8000.0


_AMOUNT = st.floats(0, 1e5)
_PRICE = st.floats(0, 100)
_QUANTITIES = st.builds(
    Quantities,
    output_tokens=st.integers(0, 10_000),
    target_busy_s=_AMOUNT,
    target_held_s=_AMOUNT,
    total_s=_AMOUNT,
    draft_j=_AMOUNT,
    target_j=_AMOUNT,
    uplink_bytes=st.integers(0, 10**9),
    downlink_bytes=st.integers(0, 10**9),
)
_PRICES = st.builds(
    Prices,
    target_per_hour_usd=_PRICE,
    electricity_usd_per_kwh=_PRICE,
    uplink_usd_per_gb=_PRICE,
    downlink_usd_per_gb=_PRICE,
    draft_per_hour_usd=st.none() | _PRICE,
)


@given(_QUANTITIES, _PRICES, st.sampled_from(["busy", "held"]))
def test_components_always_sum_to_the_total(used: Quantities, prices: Prices, billing: str) -> None:
    cost = cost_of(used, prices, billing)
    parts = dataclasses.asdict(cost).values()
    assert cost.total_usd == pytest.approx(sum(parts), rel=1e-12, abs=1e-12)
    assert objective_units("total_cost", used, prices, billing) == cost.total_usd


@given(st.lists(_QUANTITIES, min_size=1, max_size=5), _PRICES)
def test_the_cost_of_a_sum_is_the_sum_of_the_costs(parts: list[Quantities], prices: Prices) -> None:
    whole = cost_of(sum_quantities(parts), prices, "busy").total_usd
    singles = [cost_of(part, prices, "busy").total_usd for part in parts]
    assert whole == pytest.approx(sum(single for single in singles if single is not None), rel=1e-9)
