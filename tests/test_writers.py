"""Writers beyond `metrics.jsonl`, against a stand-in that keeps what it is given."""

import sys
import types

import pytest

from riskppo_jax.errors import UserError
from riskppo_jax.settings import read_settings
from riskppo_jax.writers import WandB, extra_writers, require_extras


@pytest.fixture
def wandb(monkeypatch):
    """A module with W&B's `init`, whose run remembers."""
    kept = types.SimpleNamespace(started=None, logged=[], finished=0)

    class Run:
        def log(self, values, step=None):
            kept.logged.append((step, values))

        def finish(self):
            kept.finished += 1

    def init(**options):
        kept.started = options
        return Run()

    module = types.ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return kept


def test_wandb_gets_the_settings_and_every_number(wandb, tmp_path):
    settings = read_settings(["env=SafetyHopperVelocity-v1", "log.wandb=true", "log.project=risk", "seed=3"])
    (writer,) = extra_writers(settings, tmp_path)
    assert wandb.started["project"] == "risk" and wandb.started["config"]["seed"] == 3
    assert wandb.started["name"] == tmp_path.name and wandb.started["resume"] == "allow"
    again, other = tmp_path, tmp_path / "other"
    other.mkdir()
    first = wandb.started["id"]
    assert [WandB(folder, settings) and wandb.started["id"] == first for folder in (again, other)] == [True, False]
    writer.write({"train/env_steps": 2048, "train/return": 1.5, "train/cost": None})
    writer.close()
    assert wandb.logged == [(2048, {"train/env_steps": 2048, "train/return": 1.5})]
    assert wandb.finished == 1


@pytest.mark.parametrize("name, module", [("wandb", "wandb"), ("tensorboard", "tensorboardX")])
def test_an_absent_package_is_named(name, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    settings = read_settings(["env=SafetyHopperVelocity-v1", f"log.{name}=true"])
    with pytest.raises(UserError, match=rf"log\.{name}=true: accepts an installed"):
        require_extras(settings)
