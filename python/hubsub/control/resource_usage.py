"""Resource use of this process."""

import resource


def cpu_s() -> float:
    """Seconds of processor time, of all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return round(usage.ru_utime + usage.ru_stime, 6)


def resident_bytes() -> int | None:
    """Resident memory; None if the system does not report it (not Linux)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None
