"""Time a model: as a module, or this folder alone on a machine that has only torch and numpy."""

import sys
from pathlib import Path
from types import ModuleType

if not __package__:  # run as a folder: find the modules without loading the rest of the package
    room = Path(__file__).resolve().parents[1]
    sys.path.pop(0)
    for name, folder in (("dspark_sim", room.parent), ("dspark_sim.model", room)):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]

if __name__ == "__main__":
    from dspark_sim.model.timing.command import main

    sys.exit(main())
