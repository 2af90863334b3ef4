"""`python -m hubsub.pipeline.devices`: as `hubsub pipeline devices`."""

from hubsub.pipeline.cli import main

if __name__ == "__main__":
    main("devices")
