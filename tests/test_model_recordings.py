import pytest

pytest.importorskip("torch", reason="the model room needs torch")

from dspark_sim.acceptance import read_recording
from dspark_sim.core import UserError
from dspark_sim.model import recordings
from dspark_sim.model.corpus import DOMAINS, Document

WORDS = ("How many are left?", "Add two numbers.", "What do you like?", "Sort a list.")


@pytest.fixture(autouse=True)
def few_documents(monkeypatch):
    documents = [
        Document(domain, (f"{word} {number}", "Yes."))
        for domain in DOMAINS
        for number in range(20)
        for word in WORDS
    ]
    monkeypatch.setattr(recordings, "load_documents", lambda corpora: documents)


def test_a_recording_of_the_shipped_pair_can_be_replayed(tmp_path):
    path = tmp_path / "tiny.parquet"
    rows = recordings.make_recording(path, "tiny", "dspark-markov", responses=1, positions=6)
    source = read_recording(path)
    assert rows == len(source.frame) == 6 * len(DOMAINS)
    assert (source.max_draft_len, source.categories) == (7, sorted(DOMAINS))
    assert source.origin == "recorded: dspark-markov against tiny, T = 1"


def test_the_same_seed_records_the_same_numbers(tmp_path):
    for name in ("a", "b"):
        recordings.make_recording(
            tmp_path / name, "tiny", "dflash", temperature=0.0, responses=1, positions=4
        )
    first, second = (read_recording(tmp_path / name).frame for name in ("a", "b"))
    assert first["accepted"].tolist() == second["accepted"].tolist()
    assert first["confidence"].map(list).tolist() == second["confidence"].map(list).tolist()


def test_too_few_long_answers_are_told(tmp_path):
    with pytest.raises(UserError, match="held-out answers of domain"):
        recordings.make_recording(tmp_path / "r", "tiny", "dflash", responses=50, positions=2)
    assert list(tmp_path.iterdir()) == []
