"""Who holds a GPU's memory, and when that is reported anew."""

from monitor.recorder.memory_owners import Owners, attribute

RANKS = {10: 0, 11: 0, 20: 1}
NOTHING = Owners()


def held(*processes: tuple[int, int | None], before: Owners = NOTHING) -> Owners:
    """What is found where 10 and 11 are of rank 0, and 20 is rank 1."""
    return attribute(processes, RANKS.get, before)


def test_ranks_and_others_are_distinguished() -> None:
    """The rank with most of it, and what is left to others; no process is not nothing."""
    assert held((10, 5), (11, 6), (20, 10), (7, 3), (8, None))[:3] == (0, 11, 3)
    assert held((20, 10))[:3] == (1, 10, 0)
    assert held((7, None))[:3] == (None, None, None)  # the driver does not tell how much
    assert held()[:4] == (None, None, None, None)


def test_each_process_has_its_words() -> None:
    """By its number, the one of several contexts once."""
    found = held((20, None), (7, 3), (10, 5), (10, 6))
    assert found.words == "7 3 MiB; 10 rank 0 11 MiB; 20 rank 1 - MiB"


def test_words_stay_until_something_has_changed() -> None:
    """A log of weeks is not to have a line for every MiB."""
    first = held((10, 1000))
    assert held((10, 1100), before=first).words == "10 rank 0 1000 MiB"
    assert held((10, 1101), before=first).words == "10 rank 0 1101 MiB"
    small = held((10, 10))
    assert held((10, 74), before=small).words == "10 rank 0 10 MiB"
    assert held((10, 75), before=small).words == "10 rank 0 75 MiB"
    assert held((10, None), before=first).words == "10 rank 0 - MiB"
    assert held((20, 1000), before=first).words == "20 rank 1 1000 MiB"
    assert held(before=first).words == "none"


def test_what_crept_up_is_reported_in_the_end() -> None:
    """It is compared with what was reported, and not with the poll before."""
    found = held((10, 1000))
    for mib in range(1010, 1110, 10):
        found = held((10, mib), before=found)
    assert found.words == "10 rank 0 1000 MiB"
    assert found.rank_mib == 1100
    assert held((10, 1110), before=found).words == "10 rank 0 1110 MiB"
