"""Which pairs of nodes are measured: few rounds, and each bad node found, no good one blamed."""

from hypothesis import given
from hypothesis import strategies as st

from rundir.preflight.pairs import Conclusion, Measured, conclude, next_round

FAST, SLOW = 100.0, 10.0


def search(num_nodes: int, bad: set[int], slow: float | None = SLOW) -> tuple[Conclusion, int]:
    """Measure until there is nothing more to measure; what is known, and how many rounds."""
    nodes = [f"n{at}" for at in range(num_nodes)]
    names = {f"n{at}" for at in bad}
    measured: list[Measured] = []
    num_rounds = 0
    while paired := next_round(nodes, measured, 0.5):
        busy = [node for pair in paired for node in pair]
        assert len(busy) == len(set(busy)), "a node measures with one other at a time"
        measured += [Measured(*pair, slow if names & set(pair) else FAST) for pair in paired]
        num_rounds += 1
        assert num_rounds <= 4 * num_nodes
    return conclude(nodes, measured, 0.5), num_rounds


@given(st.integers(4, 40), st.data())
def test_each_bad_node_stands_alone(num_nodes: int, data: st.DataObject) -> None:
    """Whichever nodes are bad, as long as two are good; an odd number, and more bad than good."""
    bad = data.draw(st.sets(st.integers(0, num_nodes - 1), max_size=num_nodes - 2))
    found, _ = search(num_nodes, bad, slow=None)
    assert set(found.bad) == {f"n{at}" for at in bad}
    assert not found.undecided


@given(st.integers(4, 40), st.data())
def test_slow_is_told_from_fast_by_the_pairs_themselves(
    num_nodes: int, data: st.DataObject
) -> None:
    """While at least half of the pairs are fast, with one bad node."""
    bad = data.draw(st.integers(0, num_nodes - 1))
    assert search(num_nodes, {bad})[0].bad == [f"n{bad}"]


def test_good_nodes_take_one_round_and_an_odd_one_a_second() -> None:
    """512 good nodes are measured once; one bad one among them takes two rounds."""
    assert search(512, set())[1] == 1
    assert search(511, set())[1] == 2
    assert search(512, {100})[1] == 2


def test_of_two_nodes_none_is_blamed() -> None:
    """Nobody can tell which of them it is; of three it can."""
    found, num_rounds = search(2, {1}, slow=None)
    assert (found.bad, found.undecided, num_rounds) == ([], ["n0", "n1"], 1)
    assert search(3, {1})[0].bad == ["n1"]


def test_a_slow_measurement_by_chance_blames_nobody() -> None:
    """Both nodes of a slow pair are fast with others."""
    nodes = ["a", "b", "c", "d"]
    measured = [Measured("a", "b", SLOW), Measured("c", "d", FAST)]
    again = next_round(nodes, measured, 0.5)
    assert sorted(node for pair in again for node in pair) == nodes
    measured += [Measured(*pair, FAST) for pair in again]
    assert not next_round(nodes, measured, 0.5)
    assert conclude(nodes, measured, 0.5).good == nodes


def test_one_slow_pair_is_not_enough() -> None:
    """Though its partner is good with another: the node is measured once more."""
    nodes = ["a", "b", "c", "d"]
    measured = [
        Measured("a", "b", SLOW),
        Measured("c", "d", FAST),
        Measured("b", "c", FAST),
    ]
    found = conclude(nodes, measured, 0.5)
    assert (found.bad, found.undecided) == ([], ["a"])
    assert [pair[0] for pair in next_round(nodes, measured, 0.5)] == ["a"]


def test_one_node_has_no_pair() -> None:
    """There is nothing to measure."""
    assert next_round(["a"], [], 0.5) == next_round([], [], 0.5) == []
