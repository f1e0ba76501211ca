"""What `pyproject.toml` cannot say: `conf/` ships inside the package as `riskppo_jax.conf`."""

from pathlib import Path

from setuptools import find_packages, setup

groups = sorted(path.name for path in (Path(__file__).parent / "conf").iterdir() if path.is_dir())
presets = ["riskppo_jax.conf", *(f"riskppo_jax.conf.{group}" for group in groups)]

files = {"riskppo_jax": ["py.typed"], "riskppo_jax.report": ["*.css", "*.js"]}

setup(
    packages=[*find_packages(include=["riskppo_jax*"]), *presets],
    package_dir={"riskppo_jax.conf": "conf"},
    package_data=files | {name: ["*.yaml"] for name in presets},
)
