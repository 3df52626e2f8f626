"""A result and its folder: strict JSON, whole or not at all."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from dspark_sim.core import UserError
from dspark_sim.simulator.result import Result, to_json

FILES = ["config.json", "requests.parquet", "steps.parquet", "summary.json"]


def make_result(throughput=1.5, steps=2):
    return Result(
        config={"seed": np.int64(3), "name": "γ"},
        summary={"tok_s_gpu": np.float64(throughput), "wasted_fraction": float("nan")},
        requests=pd.DataFrame({"request_id": ["0", "1"], "tpot_ms": [1.0, np.nan]}),
        steps=pd.DataFrame({"start_ns": np.arange(steps)}),
        gaps=np.zeros((0, 2), dtype=np.int64),
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_holds_config_summary_and_tables(tmp_path):
    result = make_result()
    result.save(tmp_path / "a" / "run")
    folder = tmp_path / "a" / "run"
    assert names(folder) == FILES
    assert json.loads((folder / "config.json").read_text(encoding="utf-8")) == {
        "seed": 3,
        "name": "γ",
    }
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary == {"tok_s_gpu": 1.5, "wasted_fraction": None}
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "requests.parquet"), result.requests)
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "steps.parquet"), result.steps)
    assert names(tmp_path / "a") == ["run"]


def test_without_step_records_there_is_no_step_file(tmp_path):
    make_result(steps=0).save(tmp_path / "run")
    assert names(tmp_path / "run") == [name for name in FILES if name != "steps.parquet"]


def test_a_table_is_written_in_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("dspark_sim.simulator.result.ROW_GROUP", 100)
    result = make_result(steps=250)
    result.save(tmp_path / "run")
    file = pq.ParquetFile(tmp_path / "run" / "steps.parquet")
    groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert groups == [100, 100, 50]
    pd.testing.assert_frame_equal(file.read().to_pandas(), result.steps)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "null"),
        (float("inf"), "null"),
        (np.float64("nan"), "null"),
        (np.float32(0.5), "0.5"),
        (np.int64(7), "7"),
        (np.bool_(True), "true"),
        (None, "null"),
        (0.1, "0.1"),
    ],
)
def test_json_is_strict(value, text):
    assert to_json({"x": value}) == f'{{\n  "x": {text}\n}}\n'


def test_json_is_strict_inside_lists_and_tables():
    values = {"a": [float("nan"), (1, np.float64(2.0))], 5: {"b": np.inf}}
    loaded = json.loads(to_json(values), parse_constant=pytest.fail)
    assert loaded == {"a": [None, [1, 2.0]], "5": {"b": None}}


def test_the_same_result_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        make_result().save(tmp_path / name)
    for name in FILES:
        first, second = (tmp_path / folder / name for folder in ("one", "two"))
        assert first.read_bytes() == second.read_bytes()


def test_saving_again_replaces_the_whole_folder(tmp_path):
    make_result(1.0, steps=3).save(tmp_path / "run")
    make_result(2.0, steps=0).save(tmp_path / "run")
    assert names(tmp_path / "run") == [name for name in FILES if name != "steps.parquet"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["tok_s_gpu"] == 2.0
    assert names(tmp_path) == ["run"]


def fail_at(monkeypatch, call):
    """Make the `call`-th table fail to be written."""
    write, calls = pq.ParquetWriter.write_table, []

    def write_table(writer, table):
        calls.append(table)
        write(writer, table)
        if len(calls) == call:
            raise OSError("no space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", write_table)


@pytest.mark.parametrize("call", [1, 2])
def test_a_failure_in_the_middle_leaves_no_folder(tmp_path, monkeypatch, call):
    fail_at(monkeypatch, call)
    with pytest.raises(OSError, match="no space left"):
        make_result().save(tmp_path / "run")
    assert names(tmp_path) == []


@pytest.mark.parametrize("call", [1, 2])
def test_a_failure_in_the_middle_leaves_the_old_folder_as_it_was(tmp_path, monkeypatch, call):
    make_result(1.0).save(tmp_path / "run")
    before = {name: (tmp_path / "run" / name).read_bytes() for name in FILES}
    fail_at(monkeypatch, call)
    with pytest.raises(OSError, match="no space left"):
        make_result(2.0).save(tmp_path / "run")
    assert {name: (tmp_path / "run" / name).read_bytes() for name in FILES} == before
    assert names(tmp_path) == ["run"]


def test_an_interruption_in_the_middle_leaves_the_old_folder_as_it_was(tmp_path, monkeypatch):
    make_result(1.0).save(tmp_path / "run")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pq.ParquetWriter, "write_table", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_result(2.0).save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["tok_s_gpu"] == 1.0
    assert names(tmp_path) == ["run"]


def test_a_file_in_the_place_of_the_folder_is_told_and_stays(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UserError, match="is a file, a folder is needed"):
        make_result().save(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"
    assert names(tmp_path) == ["run"]


def test_a_folder_that_holds_anything_else_is_told_and_stays(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="folder"):
        make_result().save(tmp_path / "folder")
    assert names(tmp_path / "folder") == ["thesis.txt"]


def test_a_folder_that_holds_more_than_a_result_is_told_and_stays(tmp_path):
    make_result().save(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="run"):
        make_result().save(tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
