"""Settings that all tests share."""

import matplotlib as mpl
from hypothesis import settings

mpl.use("Agg")
settings.register_profile("default", deadline=None)
settings.load_profile("default")
