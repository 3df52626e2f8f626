import hashlib
import json

import numpy as np
import pytest
from engine_tables import MAX_SEQS, profiles, trt, trt_cells
from hypothesis import assume, given, settings

from dspark_sim.core import UserError
from dspark_sim.throughput import ImportOptions, export_profile, import_profile, load_profile
from dspark_sim.throughput.formats.source import JsonObject
from dspark_sim.throughput.formats.tensorrt import legacy_table
from dspark_sim.throughput.formats.tensorrt_exact import exact_table

LEGACY = {
    "token_counts": [16, 64, 256],
    "step_time_ms": [2.0, 2.0, 8.0],
    "fixed_overhead_ms": 5.0,
    "batch_sizes": [4, 32],
    "batch_overhead_ms": [0.0, 1.4],
    "minimum_predicted_gain": 0.04,
    "_meta": {"encoding": "decomposed"},
}
MARK = {
    "global_graph_batch_sizes": [512, 1024],
    "gpu": "B300",
    "gpu_count": 8,
    "gpu_snapshot_sha256": "a" * 64,
    "max_draft_len": 5,
    "rank_local_graph_batch_sizes": [64, 128],
    "runtime_snapshot": "a runtime",
    "source_diff_sha256": "b" * 64,
    "source_head": "a commit",
    "topology": "DEP8",
}
EXACT = {
    "schema_version": 2,
    "minimum_predicted_gain": 0.02,
    "cost_tables": {
        "64": {"token_counts": [0, 352], "step_time_ms": [6.0, 5.2]},
        "128": {"token_counts": [0, 704, 736], "step_time_ms": [8.0, 7.0, 7.2]},
    },
    "engine_fingerprint": MARK,
}


def read(folder, table, **options):
    path = folder / "cost.json"
    path.write_text(json.dumps(table, indent=1), encoding="utf-8")
    return import_profile(path, ImportOptions(**options))


def test_a_legacy_table_is_interpolated_and_clamped(tmp_path):
    loaded = read(tmp_path, LEGACY, keys={"max_num_seqs": 64, "max_num_batched_tokens": 1000})
    assert loaded.overhead_ms == 5.0
    for requests in (1, 4, 18, 32, 64):
        for tokens in (1, 15, 16, 40, 64, 65, 160, 256, 257, 1000):
            step = loaded.step_ms(requests, tokens)
            assert step == pytest.approx(trt(LEGACY, requests, tokens))


def test_beyond_the_last_point_nothing_is_known_unless_more_tokens_are_allowed(tmp_path):
    loaded = read(tmp_path, LEGACY)
    assert (loaded.max_num_seqs, loaded.max_num_batched_tokens) == (32, 256)
    with pytest.raises(UserError, match="covers 1 to 256 batch tokens, not 257"):
        loaded.verify_ms(257)


def test_the_planners_guard_is_kept_in_the_provenance(tmp_path):
    assert read(tmp_path, LEGACY).provenance["minimum_predicted_gain"].startswith("0.04: ")


def test_a_table_without_a_batch_axis_has_no_alpha(tmp_path):
    bare = {"token_counts": [0, 100], "step_time_ms": [1.0, 5.0]}
    loaded = read(tmp_path, bare)
    assert loaded.requests is None
    assert loaded.max_num_seqs == 256
    for tokens in (1, 50, 100):
        assert loaded.step_ms(9, tokens) == pytest.approx(trt(bare, 9, tokens))


@settings(max_examples=20)
@given(one=profiles())
def test_an_exported_legacy_table_answers_the_profile_everywhere(tmp_path_factory, one):
    length = 0 if one.drafter == "none" else 3
    table = json.loads(json.dumps(legacy_table(one, length, 0)))
    requests = np.arange(1, MAX_SEQS + 1)
    tokens = np.arange(one.token_range[0], one.token_range[1] + 1)
    step = one.step_ms(requests[:, None], tokens, 0, requests[:, None], length)
    engine = np.array([trt(table, r, tokens) for r in requests])
    assert np.allclose(engine, step, rtol=1e-9)
    again = read(tmp_path_factory.mktemp("out"), table)
    assert np.allclose(again.step_ms(requests[:, None], tokens), engine, rtol=1e-9)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"token_counts": [16, 16, 256]}, r"line 2: token_counts\[1\] must be more than the entry"),
        ({"step_time_ms": [2.0, 0.0, 8.0]}, r"line 7: step_time_ms\[1\] must be above 0, got 0"),
        ({"fixed_overhead_ms": -1}, "line 12: fixed_overhead_ms must be at least 0, got -1"),
        ({"batch_overhead_ms": [0.0]}, "line 17: batch_overhead_ms must have as many entries"),
        ({"batch_overhead_ms": [0.0, -1.0]}, r"batch_overhead_ms\[1\] must be at least 0"),
        ({"batch_sizes": []}, "batch_sizes must not be empty"),
    ],
)
def test_a_faulty_legacy_table_names_line_and_key(tmp_path, table, sentence):
    with pytest.raises(UserError, match=sentence):
        read(tmp_path, LEGACY | table)


def test_every_exact_cell_is_answered_and_a_batch_is_padded_up_to_one(tmp_path):
    loaded = read(tmp_path, EXACT)
    assert (loaded.gpu, loaded.num_gpus, loaded.max_num_seqs) == ("B300", 1, 128)
    assert "one of 8 data-parallel GPUs" in loaded.provenance["ranks"]
    for graph, tokens, ms in trt_cells(EXACT):
        assert loaded.step_ms(graph, tokens) == pytest.approx(ms)
    assert loaded.step_ms(64, 350) == pytest.approx(5.2)
    assert loaded.step_ms(128, 705) == pytest.approx(7.2)


def test_a_full_block_that_was_also_measured_as_a_cell_counts_once(tmp_path):
    tables = {"64": {"token_counts": [0, 352, 384], "step_time_ms": [6.0, 5.2, 5.9]}}
    loaded = read(tmp_path, EXACT | {"cost_tables": tables})
    assert loaded.step_ms(64, 384) == pytest.approx(6.0)


def test_requests_between_graphs_pay_for_the_next_graph(tmp_path):
    tables = {
        "8": {"token_counts": [0, 32], "step_time_ms": [4.0, 3.0]},
        "16": {"token_counts": [0, 32, 48], "step_time_ms": [6.0, 3.5, 4.5]},
    }
    loaded = read(tmp_path, EXACT | {"cost_tables": tables})
    assert loaded.request_ms([1, 8, 9, 16]).tolist() == pytest.approx([0.0, 0.0, 0.5, 0.5])


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"schema_version": 1}, "line 2: schema_version must be 2, got 1"),
        ({"cost_tables": []}, "cost_tables must be an object, got a list"),
        ({"cost_tables": {}}, "cost_tables must not be empty"),
        ({"cost_tables": {"all": {}}}, "cost_tables.all must be a number of requests"),
        (
            {"cost_tables": {"64": {"token_counts": [352], "step_time_ms": [1.0]}}},
            "line 6: cost_tables.64.token_counts must begin with 0",
        ),
        (
            {"cost_tables": {"64": {"token_counts": [0, 50], "step_time_ms": [2.0, 1.0]}}},
            r"cost_tables.64.token_counts\[1\] must lie between 64 and 384, got 50",
        ),
        (
            {"cost_tables": {"64": {"token_counts": [0, 352]}}},
            "the key 'cost_tables.64.step_time_ms' is missing",
        ),
        ({"engine_fingerprint": {}}, "the key 'engine_fingerprint.max_draft_len' is missing"),
    ],
)
def test_a_faulty_exact_table_names_line_and_key(tmp_path, table, sentence):
    with pytest.raises(UserError, match=sentence):
        read(tmp_path, EXACT | table)


def assert_engine_accepts(table):
    """Check what TensorRT-LLM does before it uses a table."""
    mark = table["engine_fingerprint"]
    assert mark.keys() == MARK.keys()
    text = json.dumps(mark, sort_keys=True, separators=(",", ":"))
    assert table["engine_fingerprint_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    graphs = [int(key) for key in table["cost_tables"]]
    assert graphs == mark["rank_local_graph_batch_sizes"]
    assert mark["global_graph_batch_sizes"] == [g * mark["gpu_count"] for g in graphs]
    cells = {}
    for graph in graphs:
        one = table["cost_tables"][str(graph)]
        assert one["token_counts"][0] == 0
        assert one["token_counts"] == sorted(set(one["token_counts"]))
        full = graph * (mark["max_draft_len"] + 1)
        assert all(graph <= tokens < full for tokens in one["token_counts"][1:])
        assert len(one["token_counts"]) <= 5
        cells |= dict(
            zip([(graph, v) for v in one["token_counts"]], one["step_time_ms"], strict=True)
        )
    assert sum(tokens > 0 for _, tokens in cells) <= 32
    told = {
        (row["rank_local_graph_batch_size"], row["rank_local_verifier_budget"]): row["step_time_ms"]
        for row in table["measurements"]
    }
    assert told == cells


@pytest.mark.parametrize("name", ["dsv4-flash-b300-tp4", "llama3.1-8b-h100", "qwen3-8b-h20"])
def test_an_exported_exact_table_is_one_that_the_engine_accepts(tmp_path, name):
    one = load_profile(name)
    table = exact_table(one, 7, 0)
    assert_engine_accepts(json.loads(json.dumps(table)))
    again = read(tmp_path, table)
    for graph, tokens, ms in trt_cells(table):
        assert one.step_ms(graph, tokens, 0, graph, 7) == pytest.approx(ms)
        assert again.step_ms(graph, tokens) == pytest.approx(ms)


@settings(max_examples=20)
@given(one=profiles(drafters=("block", "inside")))
def test_every_exported_cell_reads_back(tmp_path_factory, one):
    assume(one.token_range[0] <= 32)
    table = exact_table(one, 3, 0, graphs=[8, 12])
    assert_engine_accepts(table)
    again = read(tmp_path_factory.mktemp("out"), table)
    for graph, tokens, ms in trt_cells(table):
        assert again.step_ms(graph, tokens) == pytest.approx(ms)


def test_a_read_table_is_written_again_with_its_own_cells(tmp_path):
    again = exact_table(read(tmp_path, EXACT), None, 0)
    assert again["engine_fingerprint"]["max_draft_len"] == 5
    for graph, cells in EXACT["cost_tables"].items():
        assert again["cost_tables"][graph]["token_counts"] == cells["token_counts"]
        assert again["cost_tables"][graph]["step_time_ms"] == pytest.approx(cells["step_time_ms"])


def test_the_running_engines_fingerprint_decides_graphs_and_block(tmp_path):
    mark = tmp_path / "mark.json"
    mark.write_text(json.dumps(MARK), encoding="utf-8")
    one = load_profile("dsv4-flash-b300-tp4")
    path = export_profile(one, tmp_path / "out.json", "trt-gv", fingerprint=mark)
    table = json.loads(path.read_text(encoding="utf-8"))
    assert table["engine_fingerprint"] == MARK
    assert_engine_accepts(table)


def test_a_fingerprint_without_graphs_is_refused():
    mark = JsonObject.parse("mark.json", '{"max_draft_len": 5}')
    with pytest.raises(UserError, match="the key 'rank_local_graph_batch_sizes' is missing"):
        exact_table(load_profile("qwen3-8b-h20"), None, 0, fingerprint=mark)


def test_graphs_beyond_the_profile_are_refused():
    with pytest.raises(UserError, match="does not reach 512 requests with 7 drafts each"):
        exact_table(load_profile("dsv4-flash-b300-tp4"), None, 0, graphs=[512])
