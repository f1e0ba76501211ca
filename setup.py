"""What `pyproject.toml` cannot say: `conf/` ships inside the package as `riskppo_jax.conf`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["riskppo_jax*"]), "riskppo_jax.conf"],
    package_dir={"riskppo_jax.conf": "conf"},
    package_data={"riskppo_jax.conf": ["*.yaml", "*/*.yaml"]},
)
