"""The packages: `workbench/` and the rooms beside it, which are installed below it.

Literal top-level packages `data` and `reports` would collide with folders that users have.
"""

from setuptools import find_packages, setup

ROOMS = ("attacks", "data", "mechanisms", "reports")

setup(
    packages=[
        *find_packages(include=["workbench", "workbench.*"]),
        *(f"workbench.{package}" for room in ROOMS for package in find_packages(include=[room, f"{room}.*"])),
    ],
    package_dir={"workbench": "workbench", **{f"workbench.{room}": room for room in ROOMS}},
    package_data={
        "": ["py.typed", "*.toml", "*.j2", "*.results.gz", "templates/*"],
        "workbench.data": ["models/**/*", "certified/*.json", "marginals/*.toml", "published/*.toml"],
    },
)
