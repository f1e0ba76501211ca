"""`riskppo bench sweep`: which side of a target is the good one, and what it accepts."""

import pytest

from riskppo_jax.bench.sweep import PARTS, Between, Limit, measure
from riskppo_jax.cli import main


def test_times_are_to_stay_below_their_target():
    assert Limit("task", "a / b", 16, ratio=1.04, target=1.05).verdict == "met"
    assert Limit("task", "a / b", 16, ratio=1.06, target=1.05).verdict == "missed"
    assert Limit("task", "a / b", 16, ratio=1.06).verdict == ""


def test_bytes_are_to_be_near_those_announced():
    assert [Between("task", "bytes", 16, ratio=r, target=1.0).verdict for r in (0.79, 0.81, 1.19, 1.21)] == [
        "missed", "met", "met", "missed",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["--parts", "speed"], ["--repeats", "0"], ["foo=1", "--parts", "processes"]])
def test_bad_words(words, capsys):
    assert main(["bench", "sweep", *words]) == 2
    said = capsys.readouterr().err
    assert ("accepts" in said or "foo is no setting" in said) and said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_part_measures(part):
    assert list(measure(part, 1, ("layout.horizon=16", "layout.num_minibatches=4"), quick=True))
