"""The folder of a sweep: what counts as finished, who may write, what is cleaned."""

import json
import os
from pathlib import Path

import pytest

from dspark_sim.config import Scenario
from dspark_sim.core import UserError
from dspark_sim.study.folder import (
    METRICS,
    SweepFolder,
    exclusive,
    finished,
    name_of,
    scratch,
    store,
)

FILES = {
    "config.json": b"{}",
    "summary.json": json.dumps(dict.fromkeys(METRICS, 1.0)).encode(),
    "requests.parquet": b"PAR1",
}


def scenario(**changes):
    return Scenario.check({"profile": "llama3.1-8b-h100", "concurrency": 4} | changes)


def test_a_stored_run_is_finished(tmp_path):
    place = tmp_path / "runs" / "one"
    store(place, FILES)
    assert finished(place) == dict.fromkeys(METRICS, 1.0)
    assert name_of(place) == "runs/one"
    assert [path.name for path in place.parent.iterdir()] == ["one"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_run_that_lacks_a_file_is_not_finished(tmp_path, name, how):
    place = tmp_path / "one"
    store(place, FILES | {name: b""} if how == "empty" else FILES)
    if how == "missing":
        (place / name).unlink()
    assert finished(place) is None


def test_a_run_that_is_stored_again_replaces_the_old_one(tmp_path):
    store(tmp_path / "one", {"summary.json": b"{", "old": b"x"})
    store(tmp_path / "one", FILES)
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == sorted(FILES)


def test_a_folder_is_named_by_all_that_its_run_depends_on(tmp_path):
    here, there = SweepFolder(tmp_path, "a"), SweepFolder(tmp_path, "b")
    names = {
        here.of(scenario()), here.of(scenario(seed=1)), here.of(scenario(extend=True)),
        here.of(scenario(concurrency=5)), here.of(scenario(policy="fixed:3")),
        there.of(scenario()),
    }  # fmt: skip
    assert len(names) == 6
    assert here.of(scenario()) == here.of(scenario())


def test_folders_are_named_in_full_for_workers_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert SweepFolder(Path("out"), "a").of(scenario()).parent == tmp_path / "out" / "runs"


@pytest.mark.skipif(os.name != "posix", reason="folders are locked on POSIX systems alone")
def test_two_sweeps_do_not_write_to_one_folder(tmp_path):
    with exclusive(tmp_path / "out"):
        with (
            pytest.raises(UserError, match="another sweep is writing there"),
            exclusive(tmp_path / "out"),
        ):
            pass
        with exclusive(tmp_path / "other"):
            pass
    with exclusive(tmp_path / "out"):
        pass


def test_what_a_killed_sweep_left_is_removed_and_nothing_else(tmp_path):
    left = ["runs/.none_c1_s0_0123456789-abcd_123", ".sweep.csv-abcd_123", ".inputs-abcd_123"]
    kept = ["runs/none_c1_s0_0123456789", ".venv-abcd_123", "notes-abcd_123", ".inputs"]
    for name in left + kept:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    with exclusive(tmp_path):
        pass
    there = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()]
    assert sorted(there) == sorted([*kept, "runs"])


def test_a_sweep_that_fails_before_its_first_run_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "a" / "b"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with exclusive(tmp_path / "mine"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file: cannot be written"), exclusive(tmp_path / "file"):
        pass


def test_scratch_lies_in_the_folder_and_goes(tmp_path):
    with scratch(tmp_path) as place:
        assert place.parent == tmp_path
        (place / "file").touch()
    assert list(tmp_path.iterdir()) == []
    with scratch(None) as place:
        assert place.is_dir()
    assert not place.exists()
