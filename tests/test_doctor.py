"""`riskppo doctor`, `riskppo completion`, `riskppo --version`: what is around the trainer."""

import json
import shutil
import subprocess
from importlib.metadata import version

import pytest

from riskppo_jax import doctor
from riskppo_jax.cli import VERBS, main
from riskppo_jax.completion import SHELLS, choices, options, script


def test_a_sound_machine(capsys):
    assert main(["doctor", "--no-rendering", "--json"]) == 0
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert {"python", "jax", "mujoco", "devices", "arithmetic", "engine native", "engine mjx"} <= findings.keys()
    assert all(finding["status"] in ("ok", "note") for finding in findings.values())
    assert all(finding["advice"] for finding in findings.values() if finding["status"] == "note")


@pytest.mark.parametrize(
    ("jax", "jaxlib", "status"),
    [("0.10.1", "0.10.1", "ok"), ("0.10.2", "0.10.2", "bad"), ("0.10.1", "0.9.0", "bad"), (None, None, "bad")],
)
def test_versions_of_jax(jax, jaxlib, status):
    (finding,) = doctor.jax_versions(jax, jaxlib)
    assert finding.status == status and bool(finding.advice) == (status == "bad")


@pytest.mark.parametrize(
    ("mujoco", "mjx", "status"),
    [("3.17.0", "3.17.1", "ok"), ("4.0.0", "3.17.0", "bad"), ("4.0.0", "4.0.0", "note"), ("3.17.0", None, "bad")],
)
def test_mujoco_and_mjx_are_a_pair(mujoco, mjx, status):
    assert doctor.mujoco_versions(mujoco, mjx).status == status


def test_what_is_bad_is_said_and_fails(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_version", lambda name: "0.10.2" if name.startswith("jax") else "3.17.0")
    assert main(["doctor", "--no-rendering"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "BAD jax" in out and "doctor: jax must be mended" in out


def test_without_mujoco_the_rest_is_examined(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name.startswith("mujoco") else "0.10.1")
    monkeypatch.setattr(doctor, "_devices", lambda: iter([doctor.Finding("devices", "bad", "none")]))
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "_rendering", lambda: pytest.fail("nothing can be drawn without mujoco"))
    assert main(["doctor"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "pip install 'riskppo-jax[" in out and "must be mended" in out


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.strip() == f"riskppo {version('riskppo-jax')}"


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_know_every_verb_and_task(shell, capsys):
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert (
        all(verb in text for verb in VERBS)
        and "SafetyHopperVelocity-v1" in text
        and "--once" in text.replace("-l ", "--")
    )


def test_another_shell_is_refused(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "accepts bash, zsh, fish" in capsys.readouterr().err


def complete(tmp_path, *words):
    """What bash offers for these words, cut as bash cuts them."""
    (tmp_path / "script").write_text(script("bash"))
    (tmp_path / "runs").mkdir(exist_ok=True)
    array = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _riskppo"
    ask = f"source ./script; {asked}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    found = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not found.stderr, found.stderr
    return found.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_offers_what_fits(tmp_path):
    assert complete(tmp_path, "riskppo", "re") == ["render", "report"]
    assert complete(tmp_path, "riskppo", "train", "env", "=", "SafetyHop") == ["SafetyHopperVelocity-v1"]
    assert complete(tmp_path, "riskppo", "train", "algo", "=") == choices()["algo"]
    assert complete(tmp_path, "riskppo", "train", "algo=pp") == ["algo=ppo", "algo=ppo_lagrangian"]  # as zsh cuts
    assert complete(tmp_path, "riskppo", "train", "tot") == ["total_steps="]
    assert complete(tmp_path, "riskppo", "watch", "--on") == ["--once"]
    assert complete(tmp_path, "riskppo", "report", "ru") == ["runs"]
    assert complete(tmp_path, "riskppo", "render", "--random", "SafetyHopper") == ["SafetyHopperVelocity-v1"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_theirs(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "script").write_text(script(shell))
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_options_come_from_the_verbs_themselves():
    assert options().keys() == VERBS.keys() and "--lane" in options()["export"] and "engines" in options()["bench"]
