"""The only caller of the function library: one method per function, replies as named values."""

from forebay_shared.calls.duties import Duties, Swept
from forebay_shared.calls.intake import Intake
from forebay_shared.calls.leases import Leases
from forebay_shared.calls.letters import Letter, Letters, Requeued, Wanted
from forebay_shared.calls.library import Library
from forebay_shared.calls.operator import Operator
from forebay_shared.calls.requests import Admission, Admitted, Limits, Refusal, Seen, Shown
from forebay_shared.calls.work import Emission, Ending, Grant, Held, Release, Take, Taken

__all__ = [
    "Admission",
    "Admitted",
    "Duties",
    "Emission",
    "Ending",
    "Grant",
    "Held",
    "Intake",
    "Leases",
    "Letter",
    "Letters",
    "Library",
    "Limits",
    "Operator",
    "Refusal",
    "Release",
    "Requeued",
    "Seen",
    "Shown",
    "Swept",
    "Take",
    "Taken",
    "Wanted",
]
