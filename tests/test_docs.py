"""README and docs tell the truth: every Python block runs, every command exists, every link leads somewhere.

Blocks of a page run in order in one namespace, in a folder that holds what a reader would have by then: runs, and an
exported policy. A block under `<!-- slow -->` runs in the slow tests only, with all blocks before it.
"""

import argparse
import importlib
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from fake_runs import fake_run, untrained_run

from riskppo_jax.cli import VERBS, main
from riskppo_jax.settings import read_settings

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "experiments/README.md", "experiments/trials.md")]
PAGES += sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "benchmarks.md")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
_FENCE = re.compile(r"^(<!-- slow -->\n+)?```(\w*)\n(.*?)^```", re.M | re.S)


def blocks(page, language):
    """Code of one language on a page, with whether it is slow."""
    found = _FENCE.findall(page.read_text())
    return [(code, bool(slow)) for slow, kind, code in found if kind == language]


def commands(page):
    """Lines that start with `riskppo`, in fences, in indented blocks and in text."""
    text = page.read_text()
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    lines += re.findall(r"`(riskppo [^`\n]+)`", text)
    return [line for line in lines if re.match(r"riskppo +[a-z]", line) and re.split(r"\s+", line)[1] in VERBS]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """What a reader has at hand: `runs/` with a finished run and a sweep, and a policy exported three times."""
    folder = tmp_path_factory.mktemp("reader")
    run = untrained_run(folder / "kept", "env=SafetyHopperVelocity-v1")
    for suffix in ("npz", "stablehlo", *(["onnx"] if importlib.util.find_spec("onnx") else [])):
        assert main(["export", str(run), str(folder / f"policy.{suffix}")]) == 0
    fake_run(folder / "runs" / "hopper", betas=(0.3,), seeds=1)
    fake_run(folder / "runs" / "sweep")
    return folder


@pytest.fixture
def experiments(monkeypatch):
    """What `python experiments/check.py --write` would write: a module of claims, and one of tables."""
    monkeypatch.syspath_prepend(ROOT / "experiments")
    return importlib.import_module("check"), importlib.import_module("tables")


def run_blocks(page, folder, monkeypatch, slow):
    import riskppo_jax as rp

    found = blocks(page, "python")
    if not found or (slow and not any(is_slow for _, is_slow in found)):
        pytest.skip("no such block on this page")
    monkeypatch.chdir(folder)
    # the same step as the original's, see docs/deploy.md
    monkeypatch.setitem(sys.modules, "safety_gymnasium", SimpleNamespace(make=rp.gym.make))
    namespace = {"__name__": "__main__"}
    for code, is_slow in found:
        if is_slow and not slow:
            continue
        if "onnxruntime" in code and not importlib.util.find_spec("onnxruntime"):
            continue
        exec(compile(code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_blocks_run(page, reader, monkeypatch):
    run_blocks(page, reader, monkeypatch, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_slow_python_blocks_run(page, reader, monkeypatch):
    run_blocks(page, reader, monkeypatch, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_exist(page):
    """Verbs and options are known, and the settings of `train` are settings."""
    for line in commands(page):
        words = shlex.split(line, comments=True)[1:]
        verb, rest = words[0], words[1:]
        if any("..." in word or word == "--help" for word in rest):
            continue
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(f"riskppo_jax.cli.{verb}").configure(parser)
        if not rest and verb not in ("envs", "doctor", "train"):
            continue  # the verb alone, named in a sentence
        try:
            args = parser.parse_args(rest)
        except (SystemExit, argparse.ArgumentError) as error:
            raise AssertionError(f"{page.name}: `{line}`: {error}") from error
        if verb == "train" and not args.multirun:
            read_settings([word for word in args.words if "=" in word and not word.startswith("launcher")])


def test_there_are_enough_of_both():
    assert sum(len(blocks(page, "python")) for page in PAGES) >= 12
    assert sum(len(commands(page)) for page in PAGES) >= 30


def test_numpy_snippet_of_the_readme_is_ten_lines():
    snippets = [code for code, _ in blocks(ROOT / "README.md", "python") if "policy.npz" in code]
    assert len(snippets) == 1 and len([line for line in snippets[0].splitlines() if line.strip()]) <= 11


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target and target != "benchmarks.md":
            assert (page.parent / target).exists(), f"{page.name} -> {target}"
            # the pages that `make docs` builds are elsewhere: there such a link is dead
            assert page.parent.name != "docs" or not target.startswith(".."), f"{page.name} -> {target}"


def test_every_page_is_in_the_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = {path for entry in config["nav"] for path in entry.values()}
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} | {"benchmarks.md"}
    assert listed <= pages and pages - listed <= {"scale.md"}  # which other pages link to


def test_every_risk_measure_has_its_section_and_picture():
    from riskppo_jax.risk import oce

    text = (ROOT / "docs" / "risk.md").read_text()
    assert all(f"`{name}(" in text for name in oce.MEASURES)


def docs_make():
    spec = importlib.util.spec_from_file_location("docs_make", ROOT / "docs" / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_benchmark_page(tmp_path):
    module = docs_make()
    text = module.benchmarks(sorted((ROOT / "experiments" / "bench").glob("*.json")))
    assert "## engines (native.json)" in text and "SafetyHopperVelocity-v1" in text
    from riskppo_jax.risk import oce

    assert set(oce.MEASURES) - set(module.MEASURES) == {"spectral", "evar"}


def test_the_page_of_settings_is_that_of_the_code():
    assert (ROOT / "docs" / "settings.md").read_text() == docs_make().settings(), "run python docs/make.py"


def test_citation():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = found["preferred-citation"]
    assert paper["title"].startswith("Risk-Averse Constrained Reinforcement Learning") and paper["year"] == 2025
    assert [author["family-names"] for author in paper["authors"]] == [
        "Lee", "Saglam", "Pougkakiotis", "Karbasi", "Kalogerias",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mkdocs", path=str(Path(sys.executable).parent)) is None, reason="no mkdocs here")
def test_the_documentation_builds(tmp_path):
    assert subprocess.run([sys.executable, "docs/make.py"], cwd=ROOT).returncode == 0
    words = ["-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    assert subprocess.run([sys.executable, *words], cwd=ROOT).returncode == 0
    assert (tmp_path / "site" / "api.html").stat().st_size > 100_000


def test_tables_of_results_are_those_of_the_files(experiments):
    """Whoever runs an experiment again has `python experiments/check.py --write` bring the pages up to date."""
    check, tables = experiments
    for page in tables.PAGES:
        text = page.read_text()
        assert text.count("<!-- table ") == len(tables.MARKED.findall(text)) > 0
        assert tables.fill(text) == text, page.name
        stale = tables.MARKED.sub(lambda found: found[0].replace(" | ", " | 7"), text)
        assert stale != text and tables.fill(stale) == text
    assert check.judged()[1] == (ROOT / "experiments" / "results.md").read_text()


def test_pictures_that_compare_are_drawn_from_the_files(tmp_path, monkeypatch):
    """They cannot show other runs than the tables do, and need no runs at hand."""
    monkeypatch.syspath_prepend(ROOT / "experiments")
    compare = importlib.import_module("compare")
    for name in ("mean", "entropic"):
        shutil.copyfile(ROOT / "experiments" / "utilities" / f"{name}.json", tmp_path / f"{name}.json")
    stale = tmp_path / "frontier_of_something_else.png"
    stale.write_bytes(b"")
    found = compare.read_part(tmp_path)
    assert {label: len(lanes) for label, lanes in found.items()} == {"entropic": 2, "mean": 2}
    lane = json.loads((tmp_path / "mean.json").read_text())["lanes"][1]
    steps, values, _ = found["mean"][1].reward_curve()
    assert [steps.tolist(), values.tolist()] == [*lane["curves"]["reward"].values()]
    assert found["mean"][1].samples["velocity"].max() == lane["constraints"][0]["steps"]["percentiles"][-1]
    drawn = {path.stem for path in compare.compare(tmp_path)}
    assert drawn == {"learning_curves", "cost_curves", "frontier_velocity", "distributions_velocity"}
    assert not stale.exists()
    swept = compare.read_part(ROOT / "experiments" / "frontier")
    assert [*swept] == ["beta 0.05", "beta 0.1", "beta 0.3", "beta 1"]
