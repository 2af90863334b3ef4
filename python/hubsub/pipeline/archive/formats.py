"""The formats that an archive may have, by name."""

from collections.abc import Callable

from hubsub.errors import OptionError
from hubsub.pipeline.archive.delta import DeltaArchive
from hubsub.pipeline.archive.manifest import ManifestTable
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.archive.table import Table

FORMATS: dict[str, Callable[[Store], Table]] = {"parquet": ManifestTable, "delta": DeltaArchive}
"""To add a format, add an entry: a class that is a `Table`."""


def open_table(target: str, table_format: str = "parquet") -> Table:
    """The table at a URI; it need not exist yet.

    Raises:
        OptionError: the format or the URI's scheme is not known.
    """
    make = FORMATS.get(table_format)
    if make is None:
        raise OptionError("there is no such format", table_format, f"there are {', '.join(FORMATS)}")
    return make(Store(target))
