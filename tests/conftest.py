"""Settings that all tests share."""

import os

import matplotlib as mpl
from hypothesis import settings

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # torch's threads wait on each other when cores are few

mpl.use("Agg")
# The same examples on every run; `--hypothesis-profile=explore` draws new ones.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("default")
