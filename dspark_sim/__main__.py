"""`python -m dspark_sim`."""

from dspark_sim.cli import main

main()
