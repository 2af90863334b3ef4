"""`python -m hubsub.pipeline.archive`: as `hubsub pipeline archive`."""

from hubsub.pipeline.cli import main

if __name__ == "__main__":
    main("archive")
