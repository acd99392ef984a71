"""Why clocks were low: the bits of `throt`, as nvml.h has them (nvmlClocksEventReasons).

Idle, and what a user set, is no trouble and has no name here. HW_SLOWDOWN says only that hardware
did it: with HW_THERMAL for heat, else for power, such as a power brake.
"""

from __future__ import annotations

POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 4, 8, 32, 64, 128

NAMES = {
    POWER_CAP: "power cap",
    HW_SLOWDOWN: "hardware slowdown",
    SW_THERMAL: "software thermal",
    HW_THERMAL: "hardware thermal",
    POWER_BRAKE: "power brake",
}
"""What each is called, in the order in which they are shown."""

HEAT = SW_THERMAL | HW_THERMAL

BRAKE = HW_SLOWDOWN | POWER_BRAKE
"""A slowdown by hardware; for power, unless one for heat is reported beside it."""

FAULT = HEAT | BRAKE
"""What is a fault; a power cap is how a busy GPU runs."""


def names(bits: int) -> tuple[str, ...]:
    """Name what holds the clocks down."""
    return tuple(name for bit, name in NAMES.items() if bits & bit)
