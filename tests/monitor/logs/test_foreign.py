"""Files that are no log of dmon: refused in a line, or passed by beside a log."""

from pathlib import Path

import pytest

from monitor import cli
from monitor.live import log as live_log
from monitor.live.log import LiveLog
from monitor.logs import reader

CSV = (
    "#Date, Time, gpu, pwr, sm\n#YYYYMMDD, HH:MM:SS, Idx, W, %\n"
    " 20261121, 03:26:31, 0, 294, 98\n 20261121, 03:26:32, 0, 295, -\n"
)
DMON = "# gpu    pwr     sm \n# Idx      W      % \n    0    294     98 \n    0    295      - \n"
FOREIGN = {
    "pmon": (
        "# gpu         pid   type     sm    mem    command \n"
        "# Idx           #    C/G      %      %    name \n"
        "    0    2094147     C     92     52    python         \n"
    ),
    "query": "index, utilization.gpu [%], memory.used [MiB]\n0, 97 %, 12 MiB\n",
    "stamped": "".join(f"Nov 21 03:26:31 {line}\n" for line in DMON.splitlines()),
    "noheader": CSV.partition("\n")[2],
    "noheader,nounit": "".join(CSV.splitlines(keepends=True)[2:]),
    "tegrastats": "RAM 3221/30536MB (lfb 5x4MB) CPU [2%@729] GR3D_FREQ 0% GPU@41C\n",
    "refusal": "Not supported on the device(s)\nFailed to process command line\n",
}
COMMANDS = {
    "report": [],
    "diagnose": [],
    "plot": ["--out", "run.svg"],
    "html": ["--out", "run.html"],
    "export": ["--format", "csv", "--out", "rows.csv"],
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_log_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    command: str,
) -> None:
    """With a line that says what a log is; nothing is written, and no report says all is well."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "foreign.log"
    path.write_text(FOREIGN[kind])
    assert cli.main([command, "foreign.log", *COMMANDS[command]]) == 64
    captured = capfd.readouterr()
    assert captured.out == ""
    (last,) = captured.err.splitlines()
    assert last.startswith("monitor: a log must be one of nvidia-smi dmon, with its header")
    assert "found foreign.log" in last
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", FOREIGN)
def test_beside_a_log_it_is_passed_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """The log is read, and the other one reported."""
    paths = tmp_path / "foreign.log", tmp_path / "good.log"
    paths[0].write_text(FOREIGN[kind])
    paths[1].write_text(DMON)
    assert cli.main(["report", *map(str, paths)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert f"could not be read ({reader.FOREIGN}); no samples" in output
    assert cli.main(["diagnose", *map(str, paths)]) == 0


@pytest.mark.parametrize("text", [CSV, DMON], ids=["csv", "cells"])
def test_the_line_of_names_makes_a_log_of_one_without(tmp_path: Path, text: str) -> None:
    """Set before the rows, without what other lines begin with `#`."""
    names, _, rest = text.partition("\n")
    rows = [line for line in rest.splitlines(keepends=True) if not line.startswith("#")]
    path = tmp_path / "mended.log"
    path.write_text("".join([f"{names}\n", *rows * 50]))
    log = reader.read(str(path))
    assert (log.num_rows, log.num_unreadable, log.hints) == (100, 0, ())
    assert log.values["pwr"].tolist() == [294, 295] * 50


@pytest.mark.parametrize("kind", FOREIGN)
def test_who_watches_hears_of_it(tmp_path: Path, kind: str) -> None:
    """Each row counts as one that cannot be read, as in the report."""
    path = tmp_path / "foreign.log"
    live = LiveLog(str(path))
    for text in (FOREIGN[kind], FOREIGN[kind]):
        with path.open("a") as file:
            file.write(text)
        live_log.poll([live])
    assert live.num_unreadable == reader.read(str(path)).num_unreadable > 0
