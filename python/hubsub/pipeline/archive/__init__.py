"""The archive: hubs' records as files of a table, each once, with the offsets up to which they are archived.

`files` writes Parquet on executors, `commit` adds a batch of files to the table, `manifest` and `delta` are
the table formats, `store` accesses the storage, `compaction` merges small files. The driver sees names and
numbers of files, never rows.
"""

from hubsub.pipeline.archive.commit import Archive
from hubsub.pipeline.archive.compaction import compact, sweep
from hubsub.pipeline.archive.formats import open_table
from hubsub.pipeline.archive.reading import read
from hubsub.pipeline.archive.table import DataFile, State, Table

__all__ = ["Archive", "DataFile", "State", "Table", "compact", "open_table", "read", "sweep"]
