"""The damper's figures, from the flow and the reference aggregator on a virtual clock; each is printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.lab.simulation.results import figures, release, scene, unfairness
from tests.lab.simulation.world import BIN, QUIET, Setting, World, parse_demand

ESTIMATORS = pytest.mark.parametrize("estimator", ["fast", "average"])


def play(setting: Setting) -> Any:
    return World(setting).run()


@ESTIMATORS
@pytest.mark.parametrize("excess", ["1.2x", "2x", "5x", "20x"])
def test_a_steady_excess_settles_at_the_limit(estimator: str, excess: str) -> None:
    setting = scene(f"step-{excess}", estimator=estimator)
    track = play(setting)
    found, worst = figures(setting, track), unfairness(setting, track)
    print(f"{estimator} {excess}: {found} unfairness {worst:.3f}")
    assert 0.97 <= found.achieved <= 1.03
    assert found.deviation <= 0.05
    assert found.reaction <= (24 if estimator == "average" else 12)


@pytest.mark.parametrize(("interval", "seconds"), [(2.0, 6.0), (0.5, 3.0)])
@pytest.mark.parametrize("excess", ["5x", "20x"])
def test_fast_reacts_to_a_step_from_idle(interval: float, seconds: float, excess: str) -> None:
    for seed in range(1, 4 if excess == "5x" else 2):  # four times the attempts take four times as long
        setting = scene(f"step-{excess}", interval=interval, seed=seed)
        setting = replace(setting, shape=replace(setting.shape, seconds=QUIET + 18))
        found = figures(setting, play(setting))
        print(
            f"flushes every {interval} s, {excess}: under 1.1 × the limit after {found.reaction} s; "
            f"overshoot {found.overshoot:.1f} s of the limit"
        )
        assert found.reaction <= seconds


@pytest.mark.parametrize("seed", range(1, 4))
def test_one_node_alone_is_held_at_once_and_gets_the_whole_limit(seed: int) -> None:
    setting = scene("one-node", seed=seed)
    found = figures(setting, play(setting))
    print(f"one node: first two seconds {found.first:.3f}, settled {found.achieved:.3f}")
    assert found.first <= 1.5
    assert 0.97 <= found.achieved <= 1.03


@pytest.mark.parametrize(("estimator", "seconds"), [("fast", 12.0), ("average", 30.0)])
def test_all_passes_again_after_an_excess(estimator: str, seconds: float) -> None:
    for seed in range(1, 4):
        setting = scene("release", estimator=estimator, seed=seed)
        took = release(setting, play(setting))
        print(f"{estimator}: nothing refused {took:.1f} s after the demand fell to 0.8 × the limit")
        assert took <= seconds


@ESTIMATORS
def test_nothing_is_refused_of_even_demand_within_the_limit(estimator: str) -> None:
    """Five million attempts in all, at 99.9 % of the limit, from 20 nodes whose flushes are late and jittered."""
    setting = Setting(parse_demand("steady:0.999x"), limit=30_000, even=True, estimator=estimator)
    found = figures(setting, play(setting))
    print(f"{estimator}: {found.attempted:,} attempts at 99.9 % of the limit, {found.refused} refused")
    assert found.refused == 0
    assert found.attempted >= 2_500_000


@ESTIMATORS
def test_poisson_demand_just_within_the_limit_is_hardly_touched(estimator: str) -> None:
    setting = Setting(parse_demand("steady:0.999x"), estimator=estimator)
    found = figures(setting, play(setting))
    print(f"{estimator}: Poisson demand at 99.9 %: {found.refused / found.attempted:.2%} refused")
    assert found.refused / found.attempted < 0.03


def test_every_node_gets_its_share() -> None:
    setting = scene("step-5x", limit=3_000)  # enough that chance hides nothing
    worst = unfairness(setting, play(setting))
    print(f"the node that is worst off or best off: {worst:.1%} from its share")
    assert worst <= 0.05


@pytest.mark.parametrize("name", ["100-nodes", "fan-out", "join-and-die", "lost-flush", "gap"])
def test_trouble_does_not_keep_it_from_the_limit(name: str) -> None:
    setting = scene(name)
    found = figures(setting, play(setting))
    print(f"{name}: {found}")
    assert 0.95 <= found.achieved <= 1.05


@pytest.mark.parametrize("name", ["ramp", "bursts"])
def test_demand_that_changes_is_followed(name: str) -> None:
    """What passes in any half minute is at most the limit and what it takes to notice the excess."""
    setting = scene(name)
    track = play(setting)
    half = round(30 / BIN)
    most = max(sum(track.admitted[at : at + half]) for at in range(0, len(track.admitted) - half, 10))
    print(f"{name}: at most {most / (30 * setting.limit):.2f} × the limit in half a minute")
    assert most <= 1.6 * 30 * setting.limit


def test_the_authors_first_attempt_oscillates_and_ours_does_not() -> None:
    spread = {}
    for controller in ("damper", "naive", "linear"):
        setting = scene("step-5x", controller=controller)
        spread[controller] = figures(setting, play(setting)).deviation
    print(f"deviation of six-second rates at 5 × the limit: {spread}")
    assert spread["linear"] > 10 * spread["damper"]


def test_redis_is_asked_once_an_interval_and_node_whatever_the_rate() -> None:
    flushes = {}
    for demand in ("steady:0.5x", "steady:20x"):
        setting = Setting(parse_demand(demand), limit=300)
        flushes[demand] = play(setting).flushes
    usual = 20 * 84 / 2.0
    print(f"flushes in 84 s of 20 nodes every 2 s: {flushes}, {usual:.0f} intervals")
    assert all(0.9 * usual <= number <= 1.1 * usual for number in flushes.values())
