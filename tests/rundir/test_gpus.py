"""CUDA_VISIBLE_DEVICES, as CUDA itself reads it."""

import pytest

from rundir import gpus


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("0, 1,", ["0", "1"]),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("GPU-a,MIG-b,none", ["GPU-a", "MIG-b"]),
        ("\u0663", []),
    ],
)
def test_what_stands_behind_a_word_that_names_nothing_is_not_seen(
    text: str, words: list[str]
) -> None:
    """Nor is a number in other digits than CUDA's."""
    assert gpus.visible(text) == words
