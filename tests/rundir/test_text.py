"""The words of messages."""

from __future__ import annotations

from rundir.text import problem


def test_a_problem_is_rule_found_and_remedy_in_one_line() -> None:
    """Whatever the parts are, and however they are broken into lines."""
    output = problem(
        "MASTER_PORT must be free\non gpu01", 29500, "unset it, to have\n  one chosen\n"
    )
    assert output == "MASTER_PORT must be free on gpu01; found 29500; unset it, to have one chosen"
