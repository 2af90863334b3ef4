"""Files below a URI: the local disk, object stores and HDFS, through pyarrow.

Spark's own file systems are not accessible over Spark Connect, so credentials come from the environment
(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …), on the driver and on executors.

Invariants: `create` is atomic, and on a local disk and HDFS never overwrites a file; a closed local file is
on disk.
"""

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hubsub.errors import OptionError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SPARK_SCHEMES = {"s3": "s3a", "s3n": "s3a"}
"""Spark's names of schemes, where they differ from pyarrow's."""
ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}
SCHEMES = ("file", "s3", "s3a", "s3n", "gs", "abfs", "abfss", "hdfs")


class Store:
    """Files below a root.

    Args:
        uri: `file:///data/archive`, `s3a://bucket/archive`, …; without a scheme a path of this machine.
    """

    def __init__(self, uri: str) -> None:
        scheme, colon, rest = uri.partition(":")
        if not colon or len(scheme) < 2 or "/" in scheme:
            scheme, rest = "file", str(Path(uri).absolute())
        if scheme not in SCHEMES:
            there = ", ".join(SCHEMES)
            raise OptionError("the target has a scheme that is not supported", uri, f"there are {there}")
        self.local = scheme == "file"
        if self.local:
            # As Spark reads it: without escapes.
            rest = rest.removeprefix("//").removeprefix("localhost")
        self._scheme = scheme
        self._rest = rest.rstrip("/")
        self._opened: tuple[FileSystem, str] | None = None

    @property
    def uri(self) -> str:
        """The root in Spark's form."""
        return f"{SPARK_SCHEMES.get(self._scheme, self._scheme)}:{self._rest}"

    @property
    def object_uri(self) -> str:
        """The root in the form of pyarrow and delta-rs."""
        if self.local:
            return Path(self._rest).as_uri()
        return f"{ARROW_SCHEMES.get(self._scheme, self._scheme)}:{self._rest}"

    def spark_uri(self, path: str) -> str:
        """A file in Spark's form."""
        return f"{self.uri}/{path}"

    def read(self, path: str) -> bytes | None:
        """A file's bytes; None if it does not exist."""
        fs, root = self._open()
        try:
            with fs.open_input_stream(f"{root}/{path}") as stream:
                return bytes(stream.readall())
        except FileNotFoundError:
            return None

    def list(self, directory: str = "", recursive: bool = False) -> Iterator[tuple[str, int, float]]:
        """Path, size and age in seconds of the files of a directory."""
        from pyarrow.fs import FileSelector, FileType

        fs, root = self._open()
        selector = FileSelector(f"{root}/{directory}".rstrip("/"), recursive=recursive, allow_not_found=True)
        for info in fs.get_file_info(selector):
            if info.type == FileType.File:
                age = time.time() - (info.mtime_ns or 0) / 1e9
                yield info.path[len(root) + 1 :], info.size, age

    def create(self, path: str, data: bytes) -> bool:
        """Writes a file atomically; False if it exists already."""
        fs, root = self._open()
        target = f"{root}/{path}"
        if self._scheme not in ("file", "hdfs"):
            # An object appears when it is complete. Overwriting a concurrent one cannot be prevented here;
            # reading back detects nearly all cases.
            if self.read(path) is not None:
                return False
            with fs.open_output_stream(target) as stream:
                stream.write(data)
            return self.read(path) == data
        part = f"{target}.{uuid.uuid4().hex}.part"
        with self.writer(part[len(root) + 1 :]) as stream:
            stream.write(data)
        try:
            if self.local:
                os.link(part, target)
                _sync(Path(target).parent)
            else:
                fs.move(part, target)
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                fs.delete_file(part)
        return True

    @contextmanager
    def writer(self, path: str) -> Iterator[Any]:
        """A file to write; closed and, on a local disk, synced when the block ends. A failed block leaves none."""
        fs, root = self._open()
        target = f"{root}/{path}"
        if self._scheme in ("file", "hdfs"):
            fs.create_dir(target.rpartition("/")[0], recursive=True)
        try:
            with fs.open_output_stream(target) as stream:
                yield stream
        except BaseException:
            with suppress(Exception):
                fs.delete_file(target)
            raise
        if self.local:
            _sync(Path(target))
            _sync(Path(target).parent)

    def delete(self, paths: Iterable[str]) -> int:
        """Removes files; those that are already gone also count."""
        fs, root = self._open()
        count = 0
        for path in paths:
            with suppress(FileNotFoundError):
                fs.delete_file(f"{root}/{path}")
            count += 1
        return count

    def _open(self) -> tuple[Any, str]:
        """The file system and the root in it; opened lazily, as it cannot be sent to executors."""
        if self._opened is None:
            from pyarrow.fs import FileSystem, LocalFileSystem

            if self.local:
                self._opened = LocalFileSystem(), self._rest
                return self._opened
            uri = self.object_uri
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            if uri.startswith("s3:") and endpoint:
                parts = urlsplit(endpoint)
                uri += f"?endpoint_override={parts.netloc}&scheme={parts.scheme}"
            fs, root = FileSystem.from_uri(uri)
            self._opened = fs, root.rstrip("/")
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}


def _sync(path: Path) -> None:
    """Waits until a file or directory is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
