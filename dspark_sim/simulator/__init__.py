"""What happens: the discrete-event engine, its kernels, metrics and results.

Names are listed in `__init__.pyi`; each is loaded when it is first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
