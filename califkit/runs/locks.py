"""Locks that processes and nodes share, also on file systems that have none."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
"""What file systems without locks answer."""

PATIENCE_S = 10.0  # after so long a wait it is said who is waited for


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this name, waiting for whoever holds it.

    Where the file system has no locks a file is the mark of the holder; it outlives a killed one.
    """
    lock: BaseFileLock = FileLock(path)
    try:
        _acquire(lock)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        lock = SoftFileLock(path.with_name(f"{path.name}.held"))  # the other file may be there
        _acquire(lock)
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: BaseFileLock) -> None:
    try:
        lock.acquire(timeout=PATIENCE_S)
    except Timeout as waiting:
        print(f"waiting: {waiting} If its holder has ended, delete the file.", flush=True)
        lock.acquire()
