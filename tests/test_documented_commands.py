"""What the documentation shows exists: commands, their options, files, and what it links to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from monitor.analysis.engine import rules
from rundir.failure import classify
from trainer.options import _ELSEWHERE

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *ROOT.glob("examples/*/*.md")]
FOLDERS = ("jobs", "container", "examples", "tests", "docs", "benchmarks")
FEWEST = 20  # fewer were found by a pattern that finds nothing any more


def commands(page: Path) -> list[str]:
    """What stands in code blocks, a command a line, and in backticks."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^(?:    .*\n)+", text, flags=re.MULTILINE)
    lines = [line for block in fenced + indented for line in block.splitlines()]
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [line.split("  #")[0].strip() for line in lines] + re.findall(r"`([^`\n]+)`", plain)


def shown() -> list[tuple[str, str]]:
    """All commands of all pages, each with its page."""
    return [(page.name, command) for page in PAGES for command in commands(page)]


@cache
def help_of(module: str, subcommand: str) -> str:
    """What the command says of itself."""
    command = [sys.executable, "-m", module, *([subcommand] if subcommand else []), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


def modules() -> list[tuple[str, str, str, str]]:
    """Page, module, subcommand and options of every `python -m` of ours."""
    found = []
    for page, command in shown():
        for module, rest in re.findall(
            r"python3? -m ((?:trainer|monitor)[.\w]*)([^|;&)]*)", command
        ):
            words = rest.split()
            subcommand = ""
            if module == "monitor" and words and re.fullmatch(r"[a-z]+", words[0]):
                subcommand = words[0]
            found.append((page, module, subcommand, rest))
    return found


@pytest.mark.slow
def test_python_commands_have_the_options_they_are_shown_with() -> None:
    """An option that was renamed must not live on in a page."""
    found = modules()
    assert len(found) > FEWEST
    wrong = [
        f"{page}: python -m {module}{rest}"
        for page, module, subcommand, rest in found
        for option in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", rest)
        if not re.search(rf"{option}(?![a-z-])", help_of(module, subcommand))
    ]
    assert not wrong


def trainings() -> list[tuple[str, int, list[str]]]:
    """Page, ranks and options of every training that is shown; `…` stands for the last one."""
    found: list[tuple[str, int, list[str]]] = []
    base = ""
    for page, command in shown():
        text = command.replace("…", base, 1) if command.startswith("… --") else command
        match = re.search(r"(?:-m trainer|jobs/prelaunch\.sh)((?: +-?[\w./:-]+)*)$", text)
        if match is None or " -- " in f"{text} " or "--preflight" in text:
            continue
        base = base if command.startswith("…") else text
        num_nodes, num_ranks = (
            int(option[1]) if (option := re.search(rf"--{name}[= ](\d+)", text)) else 1
            for name in ("nodes", "(?:ntasks-per-node|nproc-per-node)")
        )
        if "--config" not in text and "my_package" not in text:
            found.append((page, num_nodes * num_ranks, match[1].replace(" --check", "").split()))
    return found


def without_data(options: list[str]) -> list[str]:
    """The same training, of data that are made up: a page's are not here."""
    text = " ".join(options).replace("--workload imagefolder", "--workload fake-images")
    return re.sub(r"--data-dir \w+", "", text).split()


@pytest.mark.slow
def test_trainings_fit_on_a_gpu_of_80_gib() -> None:
    """Every one that is shown, by what the trainer itself expects."""
    found = trainings()
    texts = [" ".join(options) for _, _, options in found]
    assert len(found) > FEWEST / 2
    assert any("llama3-8b" in text for text in texts)
    assert any("--cp 2" in text for text in texts)  # of a line that begins with …
    asked = json.dumps([(num_ranks, without_data(options)) for _, num_ranks, options in found])
    program = [sys.executable, "-m", "tests.trainer.expected", asked]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=ROOT)
    needed = [int(line) / 2**30 for line in done.stdout.splitlines()]
    assert len(needed) == len(found)
    wrong = [(*who, gib) for who, gib in zip(found, needed, strict=True) if gib > 80]
    assert not wrong


def test_make_targets_exist() -> None:
    """`make x` of every page is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {t for _, command in shown() for t in re.findall(r"^make ([a-z-]+)", command)}
    assert {"demo", "test"} <= named <= targets


def test_files_exist() -> None:
    """A script, or another file of the project, that a command names lies there."""
    pattern = rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w./-]*\w)"
    named = {(p, path) for p, command in shown() for path in re.findall(pattern, command)}
    assert len(named) > FEWEST
    assert not sorted((page, path) for page, path in named if not (ROOT / path).exists())


def test_links_lead_somewhere() -> None:
    """To a file, and to a heading of that name in it."""
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert len(links) > FEWEST
    assert not [(page.name, target) for page, target in links if not leads(page, target)]


def leads(page: Path, target: str) -> bool:
    """Whether a relative link, as it stands on a page, has an end."""
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if not (anchor and path.suffix == ".md"):
        return path.exists()
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_table_is_whole() -> None:
    """A blank line within would end it, and the rest would be shown as it is written."""
    for page in PAGES:
        lines = ["", *page.read_text(encoding="utf-8").splitlines(), ""]
        heads = [i for i in range(1, len(lines)) if lines[i][:1] == "|" != lines[i - 1][:1]]
        broken = [lines[i] for i in heads if not re.fullmatch(r"\|(?: -+ \|)+", lines[i + 1])]
        assert not broken, f"{page.name}: {broken}"


def tables(page: str, head: str) -> list[list[str]]:
    """The cells of all tables of a page that begin with these heads."""
    found: list[list[str]] = []
    is_in = False
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        is_in = (is_in and bool(cells)) or line.startswith(head)
        if is_in and cells and not line.startswith((head, "| -")):
            found.append(cells)
    return found


def test_symptoms_have_the_class_and_the_rule_they_are_shown_with() -> None:
    """A rank whose log ends with the message; a rule of that name looks for the rest."""
    found = tables("coming-from.md", "| message | means |")
    assert len(found) > FEWEST
    up = {"event": "rank_up", "rank": 0, "node": "n", "attempt": 1}
    for message, _, _, shown_class, rule in found:
        if text := re.fullmatch(r"`([^`]+)`", message):
            events = [up, up | {"event": "rank_end", "code": 1, "requested": False}]
            got = classify(events, lambda _rank, log=text[1]: log, step_code=1).finding
            assert shown_class in (f"`{got.failure_class}`", ""), message
        assert rule.strip("`") in {"", *(rule.name for rule in rules())}


def test_the_trainer_knows_the_names_of_other_programs() -> None:
    """It answers each with the option that the page shows beside it."""
    rows = tables("coming-from.md", "| there | here |")
    answered = [(there, here) for there, here in rows if re.match(r"`--[a-z-]+`(,|$)", there)]
    names = [
        (name, here) for there, here in answered for name in re.findall(r"`--([a-z-]+)`", there)
    ]
    known = [(name, here) for name, here in names if name.replace("-", "_") in _ELSEWHERE]
    assert len(known) > FEWEST
    assert not [n for n in known if _ELSEWHERE[n[0].replace("-", "_")].split()[0] not in n[1]]
