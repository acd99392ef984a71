"""The verdict on a run that stands still, from what all nodes report: which rank, and where.

The ranks that are furthest behind decide. A rank ahead of others waits for them, however long; so
there is a verdict only when every rank that is furthest behind has been silent past its limit, and
no rank has had a heartbeat just now: reports of other nodes may be some seconds old.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rundir.hang.reports import STATES
from rundir.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rundir.hang.reports import NodeReport, RankReport

_COLLECTIVES = ("backward", "agree", "log", "validate", "save", "load", "end")
_MAX_NAMED = 8


@dataclass(frozen=True)
class Verdict:
    """Who is to blame, as far as it is known, and one line that says it."""

    kind: str
    """`hung`, `stopped` or `network`."""
    rank: int | None
    node: str
    gpu: str | None
    top: str | None
    text: str
    suspects: tuple[str, ...] = ()
    """Nodes whose ranks hold up those of the others; empty where nothing tells nodes apart."""

    def to_event(self) -> dict[str, Any]:
        """Return the keys of a `verdict` event."""
        return asdict(self)


@dataclass(frozen=True)
class _Placed:
    """A rank and its node."""

    node: str
    it: RankReport

    def name(self) -> str:
        return f"rank {self.it.rank} on {self.node} ({self.it.gpu})"

    def where(self) -> str:
        """Say step, phase and line; of a process that shows none of them, its state."""
        parts = [f"at step {self.it.step} in {self.it.phase}"] if self.it.step is not None else []
        if self.it.top is not None:
            parts.append(self.it.top if parts else f"at {self.it.top}")
        elif self.it.state is not None:
            parts.append(STATES.get(self.it.state, f"in state {self.it.state}"))
        return ", ".join(parts)


@dataclass(frozen=True)
class _Scene:
    reports: Sequence[NodeReport]
    ranks: Sequence[_Placed]
    last: Sequence[_Placed]
    """Those furthest behind."""
    lost: Sequence[str]
    master: str

    def others(self, than: Sequence[_Placed]) -> list[_Placed]:
        return [placed for placed in self.ranks if placed not in than]


def compose(
    reports: Sequence[NodeReport], lost: Sequence[str] = (), master: str = "the master"
) -> Verdict | None:
    """Compose the verdict; None while some rank may still bring the others on.

    Args:
        reports: the newest of each node.
        lost: names of nodes from which no report came.
        master: MASTER_ADDR:MASTER_PORT, for the text.

    """
    ranks = [_Placed(r.node, it) for r in reports for it in r.ranks if it.state is not None]
    if not ranks:
        return None
    ranks.sort(key=lambda placed: placed.it.rank)
    least = min(placed.it.position() for placed in ranks)
    last = [placed for placed in ranks if placed.it.position() == least]
    if not (all(p.it.hung for p in last) and all(p.it.is_still() for p in ranks)):
        return None
    scene = _Scene(reports, ranks, last, lost, master)
    return next(verdict for rule in _RULES if (verdict := rule(scene)) is not None)


def _network(scene: _Scene) -> Verdict | None:
    """Some nodes reach the master and some do not."""
    cut = [r.node for r in scene.reports if r.reaches_master is False]
    if not cut or not any(r.reaches_master for r in scene.reports):
        return None
    named = [placed for placed in scene.ranks if placed.node in cut]
    what = f"{listed(cut, _MAX_NAMED)} cannot reach {scene.master}: the network is cut"
    text = f"{what}; {_who_waits(scene.ranks)}"
    return _verdict("network", named, text, node=cut[0], suspects=cut)


def _stopped(scene: _Scene) -> Verdict | None:
    """A rank that a signal has stopped runs nothing, whatever its stack says."""
    named = [placed for placed in scene.last if placed.it.state in ("T", "t")]
    if not named:
        return None
    word = STATES[named[0].it.state or "T"]
    text = f"{_named(named)} {_is(named)} {word} (state {named[0].it.state})"
    return _verdict("stopped", named, text + _since(named) + _rest(scene, named))


def _different(scene: _Scene) -> Verdict | None:
    """All wait for others, but not at the same point."""
    numbers = {placed.it.collective for placed in scene.ranks}
    phases = {placed.it.phase for placed in scene.ranks}
    same_point = len(numbers) == 1 and len(phases) > 1 and phases <= set(_COLLECTIVES)
    behind = len(scene.last) < len(scene.ranks)
    if not (same_point or (behind and all(placed.it.waiting for placed in scene.ranks))):
        return None
    return _both(scene, scene.last, "ranks wait in different collectives")


def _behind(scene: _Scene) -> Verdict | None:
    """Some did not come as far as the others."""
    if len(scene.last) == len(scene.ranks):
        return None
    text = f"{_named(scene.last)} {_hangs(scene.last)}{_since(scene.last)}"
    return _verdict(
        "hung", scene.last, text + _rest(scene, scene.last), suspects=_nodes(scene.last)
    )


def _lost(scene: _Scene) -> Verdict | None:
    """A node whose watchdog gives no report is down or cut off."""
    if not scene.lost:
        return None
    what = f"{listed([*scene.lost], _MAX_NAMED)} gave no report: the node is down or cut off"
    text = f"{what}; {_who_waits(scene.ranks)}"
    return _verdict("network", (), text, node=scene.lost[0], suspects=scene.lost)


def _stuck(scene: _Scene) -> Verdict | None:
    """All are in the same phase; some wait for the kernel, leave their GPU idle, or do not wait."""
    for named in (
        [placed for placed in scene.ranks if placed.it.state == "D"],
        [placed for placed in scene.ranks if placed.it.pattern == "idle"],
        [placed for placed in scene.ranks if placed.it.top is not None and not placed.it.waiting],
    ):
        if named and len(named) < len(scene.ranks):
            text = f"{_named(named)} {_hangs(named)}{_since(named)}"
            return _verdict("hung", named, text + _rest(scene, named), suspects=_nodes(named))
    return None


def _nodes(named: Sequence[_Placed]) -> list[str]:
    return [placed.node for placed in named]


def _apart(scene: _Scene) -> Verdict | None:
    """No rank is behind, but the lines differ: name both."""
    tops = [placed.it.top for placed in scene.ranks]
    if len(set(tops)) < 2 or None in tops:  # noqa: PLR2004
        return None
    rarest = min(tops, key=tops.count)
    named = [placed for placed in scene.ranks if placed.it.top == rarest]
    return _both(scene, named, "ranks hang in different places")


def _together(scene: _Scene) -> Verdict:
    """All are in the same place, and nothing tells them apart."""
    what = "no rank is behind: " if len(scene.ranks) > 1 else ""
    text = f"{what}{_named(scene.ranks)} {_hangs(scene.ranks)}{_since(scene.ranks)}"
    return _verdict("hung", scene.ranks, text)


_RULES: tuple[Callable[[_Scene], Verdict | None], ...] = (
    _network,
    _stopped,
    _different,
    _behind,
    _lost,
    _stuck,
    _apart,
    _together,
)
"""In this order: what is seen from outside counts before what is concluded."""


def _verdict(
    kind: str,
    named: Sequence[_Placed],
    text: str,
    *,
    node: str | None = None,
    suspects: Sequence[str] = (),
) -> Verdict:
    first = named[0] if named else None
    return Verdict(
        kind=kind,
        rank=first.it.rank if first else None,
        node=node or (first.node if first else ""),
        gpu=first.it.gpu if first else None,
        top=first.it.top if first else None,
        text=" ".join(text.split()),
        suspects=tuple(dict.fromkeys(suspects)),
    )


def _both(scene: _Scene, named: Sequence[_Placed], what: str) -> Verdict:
    other = scene.others(named)[0]
    text = f"{what}: {_named(named)} {named[0].where()}; {other.name()} {other.where()}"
    return _verdict("hung", named, text + _since(scene.ranks))


def _named(named: Sequence[_Placed]) -> str:
    if len(named) == 1:
        return named[0].name()
    rest = [f"rank {placed.it.rank} on {placed.node}" for placed in named[1:_MAX_NAMED]]
    more = [f"{len(named) - _MAX_NAMED} more"] if len(named) > _MAX_NAMED else []
    return ", ".join([named[0].name(), *rest, *more])


def _is(named: Sequence[_Placed]) -> str:
    return "is" if len(named) == 1 else "are"


def _hangs(named: Sequence[_Placed]) -> str:
    return ("hangs " if len(named) == 1 else "hang ") + named[0].where()


def _since(named: Sequence[_Placed]) -> str:
    return f", for {min(placed.it.age_s for placed in named):.0f} s"


def _rest(scene: _Scene, named: Sequence[_Placed]) -> str:
    """Say where the others are, and where a stopped rank was when it was stopped."""
    first, others = named[0].it, scene.others(named)
    own = f", at step {first.step} in {first.phase}" if first.state in ("T", "t") else ""
    own = own if first.step is not None else ""
    if not others:
        return own
    return f"{own}; {_who_waits(others)}"


def _who_waits(ranks: Sequence[_Placed]) -> str:
    """Say of many ranks in a few words where they are."""
    if not ranks:
        return "no rank of it is known"
    numbers = listed([str(placed.it.rank) for placed in ranks], _MAX_NAMED)
    plural, verb = ("rank", "waits") if len(ranks) == 1 else ("ranks", "wait")
    return f"{plural} {numbers} {verb} {ranks[0].where()}"
