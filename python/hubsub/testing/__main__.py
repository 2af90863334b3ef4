"""`python -m hubsub.testing …`: as `hubsub …`, but ends with the process at the other end of its standard input."""

import os
import runpy
import signal
import threading


def end_with_input() -> None:
    """Ends this process gracefully at the end of its standard input: when its parent has ended."""
    while os.read(0, 4_096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, daemon=True).start()
    runpy.run_module("hubsub", run_name="__main__")
