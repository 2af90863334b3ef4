"""`python -m hubsub.pipeline.replay`: as `hubsub pipeline replay`."""

from hubsub.pipeline.cli import main

if __name__ == "__main__":
    main("replay")
