"""`python -m graphopt` is `graphopt`."""

from graphopt.cli import main

main()
