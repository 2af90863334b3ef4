"""Runs the command line as `python -m hubsub`."""

from hubsub.cli import main

main()
