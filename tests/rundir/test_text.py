"""The words of messages."""

from __future__ import annotations

from rundir.text import listed, problem


def test_a_problem_is_rule_found_and_remedy_in_one_line() -> None:
    """Whatever the parts are, and however they are broken into lines."""
    output = problem(
        "MASTER_PORT must be free\non gpu01", 29500, "unset it, to have\n  one chosen\n"
    )
    assert output == "MASTER_PORT must be free on gpu01; found 29500; unset it, to have one chosen"


def test_a_problem_moves_no_cursor() -> None:
    """What was found may be the name of anybody's file."""
    assert problem("--resume", "\x1b[2J\udcff", "é") == "--resume; found \\x1b[2J\\udcff; é"


def test_of_many_names_some_are_listed() -> None:
    """The others are counted."""
    names = ["n1", "n2", "n3"]
    assert [listed(names, most) for most in (1, 3)] == ["n1 and 2 more", "n1, n2, n3"]
    assert listed([], 1) == ""
