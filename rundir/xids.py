"""What an XID is called, what it means and whose fault it is: NVIDIA's catalogue, as one table.

Source: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (Ampere and newer), by
its columns of actions and trigger conditions: a fault for which it says to look at the program is
the program's; one that takes a reset, a restart or the administrators is the hardware's, its
firmware included; what the driver met in an engine, and cures by a restart of the program, is the
driver's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

Owner = Literal["program", "hardware", "driver", "nobody"]
Severity = Literal["error", "warning", "hint"]
"""As monitor/analysis/findings.py has them."""


class Xid(NamedTuple):
    """What a number means, whose fault it mostly is, and how bad that is."""

    owner: Owner
    severity: Severity
    meaning: str
    name: str = "-"
    """NVIDIA's own; only those that are met most have one here."""

    @property
    def fault(self) -> str:
        """Whose fault it is, in words."""
        return "no fault" if self.owner == "nobody" else f"the {self.owner}'s fault"


_PROGRAM = {
    11: "the program's stream of commands is invalid",
    13: "a kernel of the program did something illegal, mostly out of bounds",
    25: "the program's stream of commands is illegal",
    31: "a kernel of the program used an address that is not mapped",
    43: "the program hit its own fault and was ended; the GPU is well",
    69: "the program gave the GPU a command of the wrong class",
    80: "corrupted data was sent to the GPU",
    137: "a kernel of the program used an illegal address of another GPU",
}

_HARDWARE = {
    32: "the stream of commands was corrupted, mostly on the PCIe bus",
    46: "the GPU stopped processing",
    48: "memory error that could not be corrected (double bit)",
    54: "auxiliary power is not connected",
    62: "the GPU's own controller halted",
    64: "a bad row of memory could not be recorded for remapping",
    74: "NVLink error, here or at its other end",
    79: "the GPU has fallen off the bus",
    94: "memory error, contained to this program",
    95: "memory error, not contained: every program on the GPU is affected",
    109: "the GPU could not switch contexts in time",
    110: "security fault",
    119: "the GPU's system processor (GSP) does not answer",
    120: "the GPU's system processor (GSP) failed",
    136: "an NVLink could not be trained",
    140: "memory error that could not be recovered",
    143: "the GPU could not be initialised",
    **dict.fromkeys(range(144, 151), "NVLink error"),
    155: "an NVLink went down",
    158: "the GPU timed out for good",
    167: "a PCIe request timed out for good",
    169: "the GPU's own controller halted",
    171: "memory error in DRAM that could not be corrected",
    172: "memory error in SRAM that could not be corrected",
}

_WEARING = {
    63: "a bad row of memory was recorded for remapping",
    92: "many corrected memory errors",
    156: "a bad part of the GPU was retired",
    157: "a bad part of the GPU could not be retired",
    160: "a bad memory channel was retired",
    161: "a bad memory channel could not be retired",
    163: "power smoothing was switched off",
    164: "the circuit for power smoothing is nearly worn out",
    165: "the circuit for power smoothing is worn out",
    168: "a part of the memory is lost",
}

_COPY_ENGINES = (39, 40, 41, *range(70, 73), *range(75, 78), 85, *range(126, 136))
_VIDEO_ENGINES = (60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142)

_DRIVER = {
    **dict.fromkeys(_COPY_ENGINES, "error in a copy engine"),
    **dict.fromkeys(_VIDEO_ENGINES, "error in a video engine"),
    8: "the GPU stopped processing",
    37: "error in the driver's firmware",
    38: "error in the driver's firmware",
    44: "fault while contexts were switched",
    61: "the GPU's own controller met a breakpoint",  # of older GPUs only
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    78: "a virtual GPU could not be started",
    141: "error in the fast path of CUDA",
    151: "the keys could not be rotated",
    159: "error on the link to the CPU",
    166: "traffic before the link was encrypted",
    170: "interrupt in confidential mode",
}

_NOTES = {
    14: "an injected error",
    45: "a program was ended: look for what came before",
    93: "the limit of writes to the InfoROM is reached",
    106: "a test message",
    107: "a test message",
    108: "a translation failed at the other end of an NVLink",
    121: "corrected errors on the link to the CPU",
    154: "the driver says what it takes to recover from another XID",
    162: "power smoothing is on again",
}

_NAMES = {
    13: "Graphics engine exception",
    31: "GPU memory page fault",
    32: "Invalid or corrupted push buffer stream",
    38: "Driver firmware error",
    43: "GPU stopped processing",
    45: "Preemptive cleanup, due to previous errors",
    48: "Double bit ECC error",
    61: "Internal micro-controller breakpoint",
    62: "Internal micro-controller halt",
    63: "Row remapping event",
    64: "Row remapping failure",
    69: "Graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    109: "Context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
    121: "C2C link error",
    140: "Unrecovered ECC error",
    154: "GPU recovery action changed",
}

_GROUPS: tuple[tuple[Owner, Severity, Mapping[int, str]], ...] = (
    ("program", "error", _PROGRAM),
    ("hardware", "error", _HARDWARE),
    ("hardware", "warning", _WEARING),
    ("driver", "warning", _DRIVER),
    ("nobody", "hint", _NOTES),
)

XIDS: Mapping[int, Xid] = {
    number: Xid(owner, severity, meaning, _NAMES.get(number, "-"))
    for owner, severity, group in _GROUPS
    for number, meaning in group.items()
}
"""By number; those that the catalogue calls unused are not in it."""

BROKEN: frozenset[int] = frozenset(
    number for number, xid in XIDS.items() if (xid.owner, xid.severity) == ("hardware", "error")
)
"""Those after which no program can use the GPU before it is reset, restarted or replaced."""

UNKNOWN = Xid("driver", "warning", "not in NVIDIA's catalogue as it is known here")

SUGGESTIONS: Mapping[Owner, str] = {
    "program": "the program's own fault: run a few steps under compute-sanitizer, or with"
    " CUDA_LAUNCH_BLOCKING=1, to see the line",
    "hardware": "not the program's fault: exclude the node (sbatch --exclude), and report the"
    " number and the time to the administrators; the GPU needs a reset or more",
    "driver": "start the program again; if it comes back on other nodes look at the program, if"
    " only here report it to the administrators",
    "nobody": "nothing to do for this one alone",
}


def look_up(number: str) -> Xid:
    """Give what is known of an XID, by its number as in an event."""
    return XIDS.get(int(number), UNKNOWN) if number.isdecimal() else UNKNOWN
