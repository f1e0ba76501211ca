"""Known ways to go wrong are found in the log, and ordinary runs are left in peace."""

import pytest

from riskppo_jax.traps import Watch, find_traps


def points(**columns):
    rows = zip(*columns.values(), strict=True)
    usual = {"threshold": 1.0, "mean": 0.9, "lam": 1.0, "at_bound": 0.0}
    found = [usual | dict(zip(columns, row, strict=True)) for row in rows]
    return [{f"constraint0/{name}": value for name, value in point.items()} for point in found]


def test_a_price_at_its_bound():
    (bound,) = find_traps(points(at_bound=[0.0, 0.0, 0.0, 1.0]), ["velocity"])
    assert "lambda of velocity was at its bound for 25% of training" in bound
    assert find_traps(points(at_bound=[1.0, 1.0, 1.0, 0.0]), ["velocity"]) == []  # it came down again
    assert find_traps(points(at_bound=[0.1] * 4), ["velocity"]) == []


def test_a_price_that_follows_a_growing_bound():
    grows = [0.03 * 1.5**k for k in range(10)]
    assert find_traps(points(at_bound=[1.0] * 10, lam_max=grows), ["cost"]) == []
    (stuck,) = find_traps(points(at_bound=[1.0] * 10, lam_max=grows[:7] + [grows[6]] * 3), ["cost"])
    assert "at its bound for 40% of training" in stuck


def test_standing_while_the_price_falls():
    falling = [2.0 - 0.2 * k for k in range(8)]
    (still,) = find_traps(points(lam=falling, mean=[0.05] * 8), ["velocity"])
    assert "stood still while lambda decayed" in still and "to the end" in still
    assert find_traps(points(lam=falling, mean=[0.9] * 8), ["velocity"]) == []


def test_standing_after_the_price_is_gone():
    (still,) = find_traps(points(lam=[0.0, 1.0, 2.0] + [0.0] * 9, mean=[0.9, 0.9] + [0.2] * 10), ["velocity"])
    assert "stood still" in still


def test_leaving_the_trap_is_said_too():
    lam, mean = [1.0, 2.0] + [0.0] * 8 + [1.0] * 4, [0.9, 0.9] + [0.1] * 8 + [0.95] * 4
    (still,) = find_traps(points(lam=lam, mean=mean), ["velocity"])
    assert "left it later" in still


@pytest.mark.parametrize("lam", [[1.0 + 0.1 * k for k in range(10)], [0.0] * 10])
def test_a_slow_policy_that_is_held_or_was_never_priced_is_no_trap(lam):
    assert find_traps(points(lam=lam, mean=[0.05] * 10), ["velocity"]) == []


def test_watching_says_each_kind_once_and_in_time():
    watch = Watch(["velocity"], total=40)
    log = points(lam=[1.0, 2.0, *[2.0 - 0.1 * k for k in range(20)]], mean=[0.9, 0.9, *[0.1] * 20])
    said = [(k, trap) for k, point in enumerate(log) for trap in watch.see(point)]
    assert len(said) == 1 and "so far" in said[0][1]
    assert said[0][0] == 7  # the fifth point in a row
    assert [trap for point in log for trap in watch.see(point, lane=1)]


def test_a_policy_that_earns_as_ever_does_not_stand_still():
    """A cost can be far below its limit at no price because a policy has learned to avoid it."""
    quiet = points(lam=[0.0, 1.0, 2.0] + [0.0] * 9, mean=[0.9, 0.9] + [0.2] * 10)
    earning = [point | {"train/return": 20.0} for point in quiet]
    resting = [point | {"train/return": 20.0 if k < 2 else 1.0} for k, point in enumerate(quiet)]
    assert not find_traps(earning, ["velocity"])
    assert find_traps(resting, ["velocity"])


def test_standing_for_the_bonus_is_standing():
    """Episodes of full length earn more than ever, but steps that once moved earned more than a step at rest."""
    lam = [0.3, 0.4, 0.2, *[0.0] * 9]
    log = points(lam=lam, mean=[1.2, 0.8, *[0.1] * 10])
    earned = zip([100.0, 300.0, *[1060.0] * 10], [2.0, 1.6, *[1.06] * 10], strict=True)
    log = [point | {"train/return": a, "train/reward": b} for point, (a, b) in zip(log, earned, strict=True)]
    (standing,) = find_traps(log, ["velocity"])
    assert standing.startswith("the policy stood still while lambda decayed")
    assert find_traps([point | {"train/reward": 2.0} for point in log], ["velocity"]) == []


def test_a_policy_that_forgets_is_told_from_one_that_pays():
    """The same fall of the return, with the risk as it was and with the risk gone."""
    earned = [1300.0] * 5 + [120.0] * 8

    def log(risk, earned=earned):
        return [point | {"train/return": x} for point, x in zip(points(risk=risk), earned, strict=True)]

    (forgot,) = find_traps(log([0.37] * 13), ["velocity"])
    assert forgot.startswith("the policy forgot what it could do: its return fell from 1300 to 120")
    pays = [1300.0] * 5 + [400.0] * 8
    assert find_traps(log([0.37] * 5 + [0.1] * 8, pays), ["velocity"]) == []
    (gave_up,) = find_traps(log([0.37] * 5 + [0.1] * 8), ["velocity"])
    assert gave_up.startswith(
        "the policy gave its task up for a limit: its return fell from 1300 to 120 and stayed below"
    )
    assert find_traps(log([0.37] * 13, [*earned[:12], 1200.0]), ["velocity"]) == []
    watch = Watch(["velocity"], total=40)
    assert len([trap for point in log([0.37] * 13) for trap in watch.see(point)]) == 1


def test_bursts_that_take_up_the_limit():
    """Rocking to and fro: the worst steps are at the limit, the mean is not; a rare cost is no such thing."""
    (swings,) = find_traps(points(risk=[1.0] * 8, mean=[0.45] * 8, t_batch=[-0.5] * 8), ["velocity"])
    assert swings.startswith("velocity swings: its risk is at the limit while its mean is 45% of it, for 8 log points")
    assert find_traps(points(risk=[1.0] * 8, mean=[0.9] * 8, t_batch=[-0.9] * 8), ["velocity"]) == []
    assert find_traps(points(risk=[1.0] * 8, mean=[0.3] * 8, t_batch=[0.0] * 8), ["cost"]) == []
    assert find_traps(points(risk=[1.0] * 8, mean=[-9.0] * 8, t_batch=[-0.5] * 8), ["nearness"]) == []
    assert find_traps(points(risk=[1.0] * 7 + [0.5], mean=[0.45] * 8, t_batch=[-0.5] * 8), ["velocity"]) == []


def test_each_kind_is_said_once_for_each_constraint_whatever_it_counts():
    watch = Watch(["velocity", "effort"], total=40)
    one = points(at_bound=[1.0] * 12)
    log = [point | {name.replace("0/", "1/"): x for name, x in point.items()} | {"ppo/skipped": 1} for point in one]
    said = [trap for point in log for trap in watch.see(point)]
    assert len(said) == 3 and sum("gradient steps were skipped" in trap for trap in said) == 1
    assert {"velocity", "effort"} == {
        name for name in ("velocity", "effort") for trap in said if f" of {name} " in trap
    }
