"""Every notebook runs from a clean kernel and prints what it was committed with."""

import warnings
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def pair(request, tmp_path_factory):
    """A notebook as committed, and as it comes out of a clean kernel in an empty folder."""
    with warnings.catch_warnings():
        # jupyter_client and zmq lag behind asyncio; the kernel's own warnings are outputs.
        warnings.simplefilter("ignore", DeprecationWarning)
        from nbclient import NotebookClient

        committed = nbformat.read(request.param, as_version=4)
        fresh = nbformat.read(request.param, as_version=4)
        for cell in code_cells(fresh):
            cell.outputs, cell.execution_count = [], None
        folder = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
        NotebookClient(fresh, timeout=300, kernel_name="python3", resources=folder).execute()
    return committed, fresh


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cell):
    """Return what a cell printed and the plain text of its results; pictures are left out."""
    printed = "".join(out.text for out in cell.outputs if out.output_type == "stream")
    results = [out.data for out in cell.outputs if out.output_type == "execute_result"]
    return printed, [data.get("text/plain") for data in results if "image/png" not in data]


def test_a_notebook_prints_what_it_was_committed_with(pair):
    committed, fresh = pair
    for old, new in zip(code_cells(committed), code_cells(fresh), strict=True):
        assert texts(old) == texts(new), old.source


def test_a_notebook_ends_in_a_picture(pair):
    for notebook in pair:
        assert any("image/png" in output.data for output in notebook.cells[-1].outputs)


def test_a_notebook_was_committed_as_it_ran_from_top_to_bottom(pair):
    counts = [cell.execution_count for cell in code_cells(pair[0])]
    assert counts == list(range(1, len(counts) + 1))


def test_a_notebook_warns_of_nothing(pair):
    streams = [out for cell in code_cells(pair[1]) for out in cell.outputs if "name" in out]
    assert [out.text for out in streams if out.name == "stderr"] == []
