"""An asynchronous actor-learner training service for reinforcement learning on TensorFlow."""

from alf import _starting

__version__ = "0.1.0"

# Commands that only read files, or start other processes, leave TensorFlow out and start in a fraction of a second.
_LIGHT_COMMANDS = ("alf.bin.status", "alf.bin.grid_search")

if _starting.command().startswith("alf.bin."):
    _starting.end_at_once_by_interrupt()

if _starting.command() not in _LIGHT_COMMANDS:
    from alf import _tf as _tf
