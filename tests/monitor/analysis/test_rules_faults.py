"""Rules on faults of a GPU or its driver: just above each threshold and just below."""

import pytest

from monitor.analysis.engine import evaluate
from tests.monitor.analysis.rule_cases import NAN, Case, findings_of
from tests.monitor.made_runs import at, first, gpu, mark, run

CASES = [
    Case("ecc", "error", run(gpu(dbecc=at(slice(100, None), 1, 0))), run(gpu(dbecc=0)),
         "1 memory error came up that could not be corrected"),
    Case("ecc", "warning", run(gpu(dbecc=3)), run(gpu(dbecc=NAN)), "corrected, from before"),
    Case("ecc", "hint",
         run(gpu(sbecc=at(slice(100, None), 107, 7))), run(gpu(sbecc=at(slice(100, None), 106, 7))),
         "100 memory errors came up, and could be corrected"),
    Case("ecc", "error", run(gpu(), log_events=(mark("ecc", bits="double"),)),
         run(gpu(), log_events=(mark("ecc", bits="single"),)), "error that could not be corrected"),
    Case("remap", "warning", run(gpu(remap=at(slice(100, None), 3, 2))), run(gpu(remap=2)),
         "1 row of memory remapped, 3 in all"),
    Case("remap", "error", run(gpu(), log_events=(mark("remap", failed="1"),)),
         run(gpu(), log_events=(mark("back"),)), "could not be remapped"),
    Case("remap", "warning", run(gpu(), log_events=(mark("remap"),)), run(gpu()),
         "is to be remapped"),
    Case("xid", "error", run(gpu(), log_events=(mark("xid", xid="79"), mark("xid", xid="79"))),
         run(gpu(), log_events=(mark("lost"),)),
         "XID 79: the GPU has fallen off the bus (the hardware's fault), 2 times"),
    Case("lost", "error",
         run(gpu(**dict.fromkeys(("sm", "pwr", "gtemp", "fb"), at(slice(238, None), NAN, 50)))),
         run(gpu(**dict.fromkeys(("sm", "pwr", "gtemp", "fb"), at(slice(239, None), NAN, 50)))),
         "no reading in 2 of 240 samples one after the other, up to the end of the log"),
    Case("lost", "warning",
         run(gpu(**dict.fromkeys(("sm", "pwr", "gtemp", "fb"), at(first(2), NAN, 50)))),
         run(gpu(sm=NAN)),
         "then it answered again"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_threshold(case: Case) -> None:
    """What is just over it is found, with place, time and numbers; what is just below is not."""
    case.check()


def test_the_end_counts_and_not_only_the_longest() -> None:
    """A GPU that answered once and is silent at the end is lost; so is one that hangs again."""
    power_w = at(slice(20, 90), NAN, 300)
    power_w[200:] = NAN
    silent = {"pwr": power_w, "gtemp": power_w, "fb": power_w, "sm": power_w}
    (lost,) = findings_of(run(gpu(**silent)), "lost")
    assert lost.severity == "error"
    assert lost.evidence.startswith("no reading in 40 of 240 samples one after the other")
    assert lost.evidence.endswith("up to the end of the log (and 1 more time)")
    memory = at(slice(20, 90), 0, 40)
    memory[200:] = 0
    watts = at(slice(20, 90), 300, 600)
    watts[200:] = 300
    (hung,) = findings_of(run(gpu(sm=100, mem=memory, pwr=watts)), "hung")
    assert hung.severity == "error"
    assert "10 min, up to the end of the log (and 1 more time):" in hung.evidence


@pytest.mark.parametrize(
    ("number", "severity", "words", "suggestion"),
    [
        ("31", "error", "an address that is not mapped (the program's fault)", "compute-sanitizer"),
        ("48", "error", "double bit) (the hardware's fault)", "exclude the node"),
        ("157", "warning", "could not be retired (the hardware's fault)", "exclude the node"),
        ("45", "hint", "look for what came before (no fault)", "nothing to do"),
        ("39", "warning", "error in a copy engine (the driver's fault)", "start the program again"),
        ("99999", "warning", "not in NVIDIA's catalogue", "start the program again"),
        ("x", "warning", "not in NVIDIA's catalogue", "start the program again"),
    ],
)
def test_whose_fault_an_xid_is(number: str, severity: str, words: str, suggestion: str) -> None:
    """The program's, the hardware's, the driver's or no fault, by NVIDIA's catalogue."""
    (found,) = evaluate(run(gpu(), log_events=(mark("xid", xid=number),)))
    assert (found.rule, found.severity, found.about) == ("xid", severity, number)
    assert words in found.evidence
    assert suggestion in found.suggestion


def test_what_a_counter_tells_an_event_does_not_tell_again() -> None:
    """The recorder writes both: one finding is enough."""
    events = (mark("ecc", bits="double"), mark("remap"))
    counted = run(gpu(dbecc=at(first(9), 1, 0), remap=at(first(9), 1, 0)), log_events=events)
    assert [one.rule for one in evaluate(counted)] == ["ecc", "remap"]


def test_where_nvml_died_no_gpu_is_blamed() -> None:
    """The recorder says so: the ranks may go on, and the node with them."""
    silent = dict.fromkeys(("sm", "pwr", "gtemp", "fb"), at(slice(200, None), NAN, 50))
    facts = {"gpus": "no readings: NVML answers nothing more"}
    (lost,) = findings_of(run(gpu(**silent)), "lost")
    (dead,) = findings_of(run(gpu(**silent, facts=facts)), "lost")
    assert "XID 79" in lost.suggestion
    assert "if nvidia-smi answers there" in dead.suggestion
    assert dead.evidence == lost.evidence
