"""The damper on a virtual clock: small scenes of ``tests/lab/simulation``, which plays the large ones."""

from __future__ import annotations

import pytest

from tests.lab.simulation.results import figures, release, scene
from tests.lab.simulation.world import Setting, World, parse_demand

ESTIMATORS = pytest.mark.parametrize("estimator", ["fast", "average"])


@ESTIMATORS
def test_a_steady_excess_settles_at_the_limit(estimator: str) -> None:
    setting = scene("step-2x", estimator=estimator, nodes=4, limit=100)
    outcome = figures(setting, World(setting).run())
    assert 0.9 <= outcome.achieved <= 1.1


def test_everything_passes_again_after_an_excess() -> None:
    setting = scene("release", nodes=4, limit=100)
    assert release(setting, World(setting).run()) <= 12


@ESTIMATORS
def test_hardly_anything_is_refused_of_even_demand_within_the_limit(estimator: str) -> None:
    setting = Setting(parse_demand("steady:0.999x"), nodes=4, limit=100, even=True, estimator=estimator)
    outcome = figures(setting, World(setting).run())
    assert outcome.refused < 0.001 * outcome.attempted
