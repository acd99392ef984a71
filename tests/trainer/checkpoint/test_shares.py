"""Which rank writes what, and copies it before."""

import json
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.ports import free_port
from tests.trainer.saved import load
from trainer.checkpoint.shards import divide

HELD = st.lists(
    st.dictionaries(st.tuples(st.sampled_from("abcdefgh"), st.just(())), st.integers(0, 9)),
    min_size=1,
    max_size=5,
)


@given(held=HELD)
def test_each_part_is_written_once_by_a_rank_that_holds_it(
    held: list[dict[tuple[str, tuple[int, ...]], int]],
) -> None:
    """Whatever some ranks hold and others do not, such as buffers."""
    shares = divide(held)
    assert sorted(part for own in shares for part in own) == sorted({p for h in held for p in h})
    assert all(own <= set(parts) for own, parts in zip(shares, held, strict=True))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_no_rank_writes_much_more_than_another(count: int) -> None:
    """The largest part more, at most."""
    sizes = {(f"{i}", ()): 100 + 7 * i % 50 for i in range(50)}
    loads = [sum(sizes[part] for part in own) for own in divide([sizes] * count)]
    assert max(loads) - min(loads) <= max(sizes.values())


@pytest.mark.slow
def test_a_rank_copies_to_the_host_what_it_writes(tmp_path: Path) -> None:
    """Of copies and of shards that several ranks hold, its part alone; all of it is written."""
    from tests.trainer.saving_ranks import (  # noqa: PLC0415 -- imports torch's DTensor
        NUM_RANKS,
        SPLIT,
        WHOLE,
        save,
    )

    port = free_port()
    context = multiprocessing.get_context("forkserver")
    ranks = [
        context.Process(target=save, args=(rank, port, tmp_path), daemon=True)
        for rank in range(NUM_RANKS)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [reported.read_text() for reported in tmp_path.glob("*.txt")] == []
    copied = [json.loads((tmp_path / f"{r}.json").read_text()) for r in range(NUM_RANKS)]
    whole = sum(t.numel() * t.element_size() for t in (WHOLE | SPLIT).values())
    for sizes in copied:
        assert sizes == [pytest.approx(whole / NUM_RANKS, rel=0.1)] * 2
    loaded = load(tmp_path)
    assert loaded is not None
    tensors = loaded[0]
    for name, tensor in (WHOLE | SPLIT).items():
        assert tensors[name].tolist() == (2 * tensor).tolist()
    assert tensors["model/buffer"].tolist() == [1.0] * 3
    assert [tensors[f"rank/{r}/loss_sum"].item() for r in range(NUM_RANKS)] == [0, 1, 2, 3]
