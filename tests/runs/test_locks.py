"""Locks where the file system has some and where it has none."""

import errno
import os
import threading
import time

import pytest

from califkit.runs import locks
from califkit.runs.locks import locked


@pytest.fixture(params=[None, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def file_system(request, monkeypatch):
    """One with locks, and what others answer."""

    def flock(file, operation):
        raise OSError(request.param, os.strerror(request.param))

    if request.param is not None:
        monkeypatch.setattr("fcntl.flock", flock)


def in_a_thread(path, said):
    def work():
        with locked(path):
            said.append("second")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_one_at_a_time_holds_a_lock(tmp_path, file_system):
    path, said = tmp_path / ".lock", []
    with locked(path):
        thread = in_a_thread(path, said)
        time.sleep(0.3)
        said.append("first")
    thread.join(timeout=20)
    assert said == ["first", "second"]


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize(("code", "name"), [(errno.ENOSYS, ".lock"), (errno.ENOLCK, ".lock.held")])
def test_a_lock_that_another_node_left_behind_is_named(tmp_path, monkeypatch, capsys, code, name):
    def flock(file, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    monkeypatch.setattr(locks, "PATIENCE_S", 0.2)
    mark, said, printed = tmp_path / name, [], ""
    mark.write_text("12345\nnode17\n999\n")  # process, node, and when the process began
    thread = in_a_thread(tmp_path / ".lock", said)
    while not printed:
        assert thread.is_alive()
        printed = capsys.readouterr().out
        time.sleep(0.05)
    assert printed.count("\n") == 1
    assert str(mark) in printed and "pid 12345 on node17" in printed and "delete" in printed
    assert said == []
    mark.unlink()
    thread.join(timeout=20)
    assert said == ["second"]
