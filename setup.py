# SPDX-License-Identifier: Apache-2.0
"""Ships conf/ and recipes/ inside the package; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["rlrun*"]), "rlrun.conf", "rlrun.recipes"],
    package_dir={"rlrun": "rlrun", "rlrun.conf": "conf", "rlrun.recipes": "recipes"},
    package_data={
        "rlrun": ["py.typed", "assets/**", "gym/*.txt"],
        "rlrun.conf": ["**/*.yaml"],
        "rlrun.recipes": ["*.yaml"],
    },
)
