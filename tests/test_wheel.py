"""The built wheel carries profiles and traces, found by name wherever it is installed."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dspark_sim.core import shipped_dir

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None or importlib.util.find_spec("pip") is None,
    reason="building a wheel needs hatchling and pip",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--quiet", "--wheel-dir", str(folder), str(ROOT)], check=True, cwd=folder
    )
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel):
    """Return a folder that holds what an installation of the wheel would."""
    folder = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(site, *arguments):
    """Run the unpacked program away from the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=site.parent,
        env=environment,
    ).stdout


def test_the_unpacked_package_is_the_one_that_runs(site):
    program = "import dspark_sim; print(dspark_sim.__file__)"
    assert Path(run(site, "-c", program).strip()).is_relative_to(site)


def test_the_wheel_lists_every_profile_and_trace_of_the_checkout(site):
    listed = json.loads(run(site, "-m", "dspark_sim", "ls", "--json"))
    profiles = {path.parent.name for path in shipped_dir("profiles").glob("*/profile.toml")}
    traces = {path.stem for path in shipped_dir("traces").glob("*.jsonl")}
    assert {row["name"] for row in listed["profiles"]} == profiles
    assert traces <= {row["name"] for row in listed["traces"]}
    assert all(row["origin"] for rows in listed.values() for row in rows)
    assert "no origin recorded" not in {row["origin"] for row in listed["traces"]}


def test_the_wheel_opens_a_profile_and_a_trace_by_name(site):
    profile = json.loads(run(site, "-m", "dspark_sim", "profile", "show", "qwen3-8b-h20", "--json"))
    assert profile["name"] == "qwen3-8b-h20"
    trace = json.loads(run(site, "-m", "dspark_sim", "trace", "show", "chat-1k", "--json"))
    assert trace["num_requests"] == 1000


def test_the_wheel_holds_the_shipped_files_byte_for_byte(wheel):
    with zipfile.ZipFile(wheel) as archive:
        for kind in ("profiles", "traces"):
            for path in shipped_dir(kind).rglob("*"):
                if path.is_file():
                    name = f"dspark_sim/{kind}/{path.relative_to(shipped_dir(kind)).as_posix()}"
                    assert archive.read(name) == path.read_bytes()


def test_the_wheel_holds_code_types_and_licence_but_no_tests_or_caches(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = archive.read(next(n for n in names if n.endswith("entry_points.txt")))
    assert "dspark_sim/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert b"dspark-sim = dspark_sim.cli:main" in entry_points
    assert not [n for n in names if n.endswith((".pyc", ".nbi", ".nbc")) or "test" in n.lower()]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"dspark_sim"}
