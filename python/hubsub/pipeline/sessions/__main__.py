"""`python -m hubsub.pipeline.sessions`: as `hubsub pipeline sessions`."""

from hubsub.pipeline.cli import main

if __name__ == "__main__":
    main("sessions")
