"""Energy meters."""

import pytest

from autodraft.meters import Meter, ModelledMeter


def test_a_modelled_meter_charges_both_powers_for_their_own_time() -> None:
    meter = ModelledMeter(watts=65.0, idle_watts=15.0)
    assert meter.energy_j(busy_s=2.0, idle_s=4.0) == pytest.approx(2 * 65 + 4 * 15)


def test_no_time_costs_no_energy() -> None:
    assert ModelledMeter(watts=65.0, idle_watts=15.0).energy_j(0.0, 0.0) == 0.0


def test_a_modelled_meter_says_that_its_figures_are_modelled() -> None:
    meter: Meter = ModelledMeter(watts=1.0, idle_watts=0.0)
    assert meter.method == "modelled"
