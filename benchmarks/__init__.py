"""How fast the simulator is on this machine: `make bench`, or `python -m benchmarks --quick`."""
