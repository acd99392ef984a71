"""Who keeps whose snapshot. That they are sent and received, test_snapshots.py shows."""

from trainer.checkpoint.snapshot_exchange import keepers


def test_each_rank_has_a_keeper_on_the_next_node() -> None:
    """Also where nodes have different numbers of ranks; alone there is none."""
    assert keepers(["a", "a"]) == {}
    assert keepers(["a", "a", "b", "b"]) == {0: 2, 1: 3, 2: 0, 3: 1}
    assert keepers(["a", "b", "c", "c"]) == {0: 1, 1: 2, 2: 0, 3: 0}
