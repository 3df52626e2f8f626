import pandas as pd
import pytest

from dspark_sim.core import UserError
from dspark_sim.study import save_learning_curves


def test_learning_curves_are_drawn_as_png_and_svg(tmp_path):
    paths = [tmp_path / "dflash-curve.csv", tmp_path / "eagle3-curve.csv"]
    for path in paths:
        pd.DataFrame(
            {"step": [10, 20], "loss": [2.0, 1.0], "c1": [0.2, 0.4], "c2": [0.1, 0.3]}
        ).to_csv(path, index=False)
    png, svg = save_learning_curves(paths, tmp_path / "out.png")
    assert png.stat().st_size > 5_000
    assert "held-out" in svg.read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [("step,loss\n1,2\n", "column 'c1' is missing"), ("step,c1\n", "no row"), ("", "cannot be")],
)
def test_a_file_that_is_no_curve_is_told(text, told, tmp_path):
    path = tmp_path / "x-curve.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=told):
        save_learning_curves([path], tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()
