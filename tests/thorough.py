"""What another test shows too is left to `make thorough`, so that the others end in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from _pytest.mark import ParameterSet


def parameters(cases: Iterable[Any], left: Collection[Any]) -> list[ParameterSet]:
    """Give all cases to `parametrize`; those that are `left` are for `make thorough` alone."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=pytest.mark.thorough if case in left else (),
        )
        for case in cases
    ]
