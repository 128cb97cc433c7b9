"""The damper's figures, from the flow and the reference aggregator on a virtual clock; each is printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lab.simulation.results import Figures, figures, release, scene
from tests.lab.simulation.world import BIN, QUIET, Setting, World, parse_demand

ESTIMATORS = pytest.mark.parametrize("estimator", ["fast", "average"])
SEEDS = pytest.mark.parametrize("seed", range(1, 4))


def play(setting: Setting) -> Figures:
    found = figures(setting, World(setting).run())
    print(found)
    return found


@ESTIMATORS
@pytest.mark.parametrize("excess", ["1.2x", "2x", "5x", "20x"])
def test_a_steady_excess_settles_at_the_limit(estimator: str, excess: str) -> None:
    found = play(Setting(parse_demand(f"step:{excess}"), estimator=estimator))
    assert 0.97 <= found.achieved <= 1.03
    assert found.deviation <= 0.05
    assert found.reaction <= (24 if estimator == "average" else 12)


@pytest.mark.parametrize(("interval", "seconds"), [(2.0, 6.0), (0.5, 3.0)])
@pytest.mark.parametrize(("excess", "seed"), [("5x", 1), ("5x", 2), ("5x", 3), ("20x", 1)])
def test_fast_reacts_to_a_step_from_idle(interval: float, seconds: float, excess: str, seed: int) -> None:
    setting = Setting(parse_demand(f"step:{excess}"), interval=interval, seed=seed)
    assert play(replace(setting, shape=replace(setting.shape, seconds=QUIET + 18))).reaction <= seconds


@SEEDS
def test_one_node_alone_is_held_at_once_and_gets_the_whole_limit(seed: int) -> None:
    found = play(scene("one-node", seed=seed))
    assert found.first <= 1.5
    assert 0.97 <= found.achieved <= 1.03


@SEEDS
@pytest.mark.parametrize(("estimator", "seconds"), [("fast", 12.0), ("average", 30.0)])
def test_all_passes_again_after_an_excess(estimator: str, seconds: float, seed: int) -> None:
    setting = scene("release", estimator=estimator, seed=seed)
    took = release(setting, World(setting).run())
    print(f"nothing refused {took:.1f} s after the demand fell to 0.8 × the limit")
    assert took <= seconds


@ESTIMATORS
def test_nothing_is_refused_of_even_demand_within_the_limit(estimator: str) -> None:
    """Five million attempts in all, at 99.9 % of the limit, from 20 nodes whose flushes are late and jittered."""
    found = play(Setting(parse_demand("steady:0.999x"), limit=30_000, even=True, estimator=estimator))
    assert found.refused == 0
    assert found.attempted >= 2_500_000


@ESTIMATORS
def test_poisson_demand_just_within_the_limit_is_hardly_touched(estimator: str) -> None:
    found = play(Setting(parse_demand("steady:0.999x"), estimator=estimator))
    assert found.refused / found.attempted < 0.03


@pytest.mark.parametrize("name", ["100-nodes", "fan-out", "join-and-die", "lost-flush", "gap"])
def test_trouble_does_not_keep_it_from_the_limit(name: str) -> None:
    assert 0.95 <= play(scene(name)).achieved <= 1.05


@pytest.mark.parametrize("name", ["ramp", "bursts"])
def test_demand_that_changes_is_followed(name: str) -> None:
    """Half a minute passes at most the limit and what it takes to notice the excess."""
    setting = scene(name)
    track, half = World(setting).run(), round(30 / BIN)
    most = max(sum(track.admitted[at : at + half]) for at in range(0, len(track.admitted) - half, 10))
    print(f"{name}: at most {most / (30 * setting.limit):.2f} × the limit in half a minute")
    assert most <= 1.6 * 30 * setting.limit


@pytest.mark.parametrize("demand", ["steady:0.5x", "steady:20x"])
def test_redis_is_asked_once_an_interval_and_node_whatever_the_rate(demand: str) -> None:
    usual = 20 * 84 / 2.0
    assert World(Setting(parse_demand(demand), limit=300)).run().flushes == pytest.approx(usual, rel=0.1)
