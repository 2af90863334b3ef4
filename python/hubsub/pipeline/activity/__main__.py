"""`python -m hubsub.pipeline.activity`: as `hubsub pipeline activity`."""

from hubsub.pipeline.cli import main

if __name__ == "__main__":
    main("activity")
