"""Where the time goes: what the learner and those who collect are busy with, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

# Above this share of its thread's time, something is worth a word.
_MUCH = 0.25
# The loop around training takes a part of the learner's time in any case, more where threads compete for processors.
_MUCH_SERVICE = 0.35


class Timings(NamedTuple):
    """Seconds since a driver's start, as they add up.

    `training` and `waiting_for_data` of the learner's thread. `environment` (stepping), `inference` (acting, with the
    way to an actor and back) and `waiting_for_learner` are sums over `threads` environment threads; 0 threads mean that
    the learner's thread collects as well.
    """

    training: float = 0.0
    waiting_for_data: float = 0.0
    environment: float = 0.0
    inference: float = 0.0
    waiting_for_learner: float = 0.0
    threads: int = 0


def together(before: Timings, now: Timings) -> Timings:
    """The timings of a driver that goes on where another has ended; `training` is the algorithm's, and counts on anyhow."""
    added = {
        name: getattr(before, name) + getattr(now, name) for name in now._fields if name not in ("training", "threads")
    }
    return now._replace(**added)


class TimeShares(NamedTuple):
    """Shares in [0, 1] of a stretch of time.

    `learner_*` of the learner's thread, and add up to 1; the others of all environment threads, or, with 0 threads, of
    the learner's thread too.
    """

    learner_training: float
    learner_waiting: float
    learner_other: float
    environment: float
    inference: float
    collecting_waiting: float
    threads: int

    def scalars(self) -> dict[str, float]:
        """The shares by name; those of threads that there are none of are left out."""
        found = self._asdict()
        del found["threads"]
        if not self.threads:
            del found["learner_waiting"], found["collecting_waiting"]
        return found

    def verdict(self) -> str:
        """One sentence: what holds the run up, by how much, and what to try."""
        return _verdict_in_turns(self) if not self.threads else _verdict_side_by_side(self)


def shares(before: Timings, after: Timings, seconds: float) -> TimeShares | None:
    """The shares of the `seconds` between two readings; None where nothing was measured."""
    if seconds <= 0 or after[:5] == before[:5]:
        return None

    def share(name: str, threads: int = 1) -> float:
        spent = getattr(after, name) - getattr(before, name)
        return min(1.0, max(0.0, spent / (seconds * threads)))

    collecting = max(1, after.threads)
    training, waiting = share("training"), share("waiting_for_data")
    environment, inference = share("environment", collecting), share("inference", collecting)
    beside = 0.0 if after.threads else environment + inference
    other = max(0.0, 1.0 - training - waiting - beside)
    held = share("waiting_for_learner", collecting)
    return TimeShares(training, waiting, other, environment, inference, held, after.threads)


def _verdict_in_turns(s: TimeShares) -> str:
    most = max(("environment", "inference", "learner_training", "learner_other"), key=lambda name: getattr(s, name))
    if most == "learner_other":
        return _service(s)
    hint = {
        "environment": "a vectorised or faster environment, or @async_off_policy_trainer, which collects beside learning",
        "inference": "more environments in a batch (create_environment.num_parallel_environments) or a smaller network",
        "learner_training": "larger minibatches (mini_batch_size) or fewer passes (num_updates_per_train_step)",
    }[most]
    name = {"environment": "the environment", "inference": "inference", "learner_training": "learning"}[most]
    return f"{name} takes {getattr(s, most):.0%} of the time, in turns with the rest: try {hint}."


def _verdict_side_by_side(s: TimeShares) -> str:
    if s.learner_other > _MUCH_SERVICE and s.learner_other > s.learner_waiting:
        return _service(s)
    if s.learner_waiting > _MUCH and s.learner_waiting >= s.collecting_waiting:
        return _collecting(s)
    if s.collecting_waiting > _MUCH:
        return (
            f"the learner is the bottleneck: it trains {s.learner_training:.0%} of the time, and environments wait for it "
            f"{s.collecting_waiting:.0%} of theirs: try larger minibatches (mini_batch_size), fewer passes "
            "(num_updates_per_train_step), or fewer environment threads (num_envs), which lowers the lag too."
        )
    return (
        f"balanced: the learner waits {s.learner_waiting:.0%} of the time for data, environments {s.collecting_waiting:.0%} "
        "of theirs for the learner."
    )


def _collecting(s: TimeShares) -> str:
    waits = f"the learner waits {s.learner_waiting:.0%} of the time for data"
    if s.environment >= s.inference:
        return (
            f"the environment is the bottleneck: {waits}, and stepping takes {s.environment:.0%} of collecting: try more "
            "environment threads (num_envs), or a vectorised or faster environment."
        )
    return (
        f"inference is the bottleneck: {waits}, and acting takes {s.inference:.0%} of collecting: try more environments in "
        "a batch (create_environment.num_parallel_environments), num_actor_queues=0, or a smaller network."
    )


def _service(s: TimeShares) -> str:
    return (
        f"the service is the bottleneck: summaries, checkpoints, evaluation and the loop take {s.learner_other:.0%} of the "
        "learner's time: try larger intervals between them."
    )
