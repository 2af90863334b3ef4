"""`python -m hubsub`."""

from hubsub.cli import main

main()
