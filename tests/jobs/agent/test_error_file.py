"""The error that torch's @record wrote for a rank is read, whatever lies there."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing.errors import record

from jobs.agent.error_file import ErrorFile, Recorded, parse

if TYPE_CHECKING:
    from pathlib import Path

KEYS = st.sampled_from(["message", "extraInfo", "py_callstack"]) | st.text()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
)


@record
def _fail(error: Exception) -> None:
    raise error from ConnectionError("Connection closed by peer")


def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Path:
    """What torch itself writes of an error."""
    path = tmp_path / "torchruns.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    with pytest.raises(type(error)):
        _fail(error)
    return path


def test_what_torch_wrote_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type and message in one line, with nothing a terminal obeys; and what caused it."""
    path = recorded(tmp_path, monkeypatch, ValueError("bad \x1b[31m shard\n 7"))
    kept = tmp_path / "kept.json"
    kept.write_text("of an earlier start")
    found = ErrorFile(str(path), str(kept)).read()
    assert found is not None
    assert found.error == "ValueError: bad [31m shard 7"
    first, *_ = found.causes.splitlines()
    assert first == "ConnectionError: Connection closed by peer"
    assert kept.read_bytes() == path.read_bytes()


def test_a_disk_without_room_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says is known all the same."""
    path = recorded(tmp_path, monkeypatch, ValueError("bad shard"))
    found = ErrorFile(str(path), str(tmp_path / "nowhere" / "kept.json")).read()
    assert found is not None
    assert found.error == "ValueError: bad shard"


def test_where_it_is_the_runs_own_file(tmp_path: Path) -> None:
    """Nothing is copied; what an earlier start left is gone, and no error is none."""
    path = tmp_path / "error.json"
    path.write_text('{"message": "old"}')
    file = ErrorFile(str(path), str(path))
    assert file.read() is None
    path.write_text('{"message": "new"}')
    assert file.read() == Recorded("new", "")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "huge", "torn", "empty"])
def test_what_is_no_error_file(tmp_path: Path, kind: str) -> None:
    """It is left alone, at once."""
    path = tmp_path / "error.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        whole = json.dumps({"message": {"message": "x" * (1 << 23 if kind == "huge" else 9)}})
        path.write_text({"huge": whole, "torn": whole[:-1], "empty": ""}[kind])
    assert ErrorFile(str(path), str(tmp_path / "kept.json")).read() is None


@pytest.mark.slow
@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_it_holds(data: bytes) -> None:
    """A line of text or nothing."""
    found = parse(data)
    assert found is None or (found.error.isprintable() and 0 < len(found.error) <= 1000)


@pytest.mark.parametrize(
    "message", [None, 7, [], {}, " \n", {"message": 7}, {"message": None, "extraInfo": 7}]
)
def test_a_message_that_is_none(message: Any) -> None:
    """Nothing is said rather than something wrong."""
    assert parse(json.dumps({"message": message}).encode()) is None


def test_extra_information_that_is_none() -> None:
    """The message counts without it."""
    for extra in (7, {}, {"py_callstack": 7}, {"py_callstack": ""}):
        data = json.dumps({"message": {"message": "E: x", "extraInfo": extra}}).encode()
        assert parse(data) == Recorded("E: x", "")


def test_no_secret_gets_into_the_events() -> None:
    """The run's record is shown to others; the rank's own files have it."""
    text = "E: no route to postgres://me:SECRET@db/x"
    message = {"message": text, "extraInfo": {"py_callstack": f"Traceback:\n{text}\n"}}
    found = parse(json.dumps({"message": message}).encode())
    assert found == Recorded(text.replace("SECRET", "***"), text.replace("SECRET", "***"))
