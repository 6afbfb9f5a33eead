"""Joins the decision steps of agents, which come and go, into segments as every algorithm knows them."""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf

from alf.data_structures import ActionTimeStep, Bootstrap, Experience, Nest, StepType


class AgentProcessor:
    """Segments of T consecutive decision steps of one slot each, out of batches in which slots are idle at times.

    A stream is what one slot of one environment goes through: agents one after another, each FIRST, MID ..., LAST. Its
    idle steps are left out, so that what follows a step is what its action has led to, however much later. A segment is
    handed out once the step after it is known, from which values bootstrap. An agent whose end was lost is truncated at
    its last step. Where a batch does not go on where the last one of its streams ended, since one between was dropped,
    the steps that no segment holds yet are dropped too.

    Instead of truncating agents that were cut, their steps that are in no segment yet can be dropped: the segments before
    end with steps that are followed by one of the same agent, and the next one begins with another agent.

    What is held is bounded by the number of streams, however many agents they have seen.
    """

    def __init__(self, length: int, drops_cut: bool = False) -> None:
        """Creates a processor that holds nothing.

        Args:
          length: T, steps in a segment.
          drops_cut: whether the open steps of an agent that was cut, or whose end was lost, are dropped.
        """
        self._length = length
        self._drops_cut = drops_cut
        self._template: Experience | None = None
        # Flat leaves of the steps that no segment holds yet, [places, streams, ...], and how many there are of each stream.
        self._held: list[np.ndarray] = []
        self._count = np.zeros(0, np.int64)
        # The action before the first of those steps, flat leaves [streams, ...].
        self._before: list[np.ndarray] = []
        # What each stream shows next, flat leaves [streams, ...], where it has been seen.
        self._next: list[np.ndarray] = []
        self._seen = np.zeros(0, bool)
        # T + 1 steps of some streams each, and the actions before them.
        self._ready: collections.deque[tuple[list[np.ndarray], list[np.ndarray]]] = collections.deque()
        self.dropped_steps = 0

    @property
    def held_steps(self) -> int:
        """Decision steps that were observed and neither handed out nor dropped."""
        return int(self._count.sum()) + self._length * self.ready

    @property
    def ready(self) -> int:
        """Segments that can be handed out."""
        return sum(leaves[0].shape[1] for leaves, _ in self._ready)

    def drop_ready(self) -> None:
        """Drops the segments that can be handed out; what is open goes on."""
        self.dropped_steps += self._length * self.ready
        self._ready.clear()

    def add(self, exp: Experience, streams: int, cut: np.ndarray | None = None) -> None:
        """Takes in steps.

        Args:
          exp: numpy arrays [T', R, ...] with a bootstrap [R, ...]; `env_id` is the same all along a row, `step_type` is
            IDLE where a slot decides nothing. `state` is that before the step, or `()`.
          streams: how many there are; ids are 0 .. streams - 1.
          cut: bool [T', R], the steps at which an agent was cut, whose open steps are dropped; None where none are.
        """
        leaves = tf.nest.flatten(exp._replace(bootstrap=()))
        if self._template is None:
            self._begin(exp, leaves, streams)
        ids = exp.env_id[0]
        self._drop_after_gaps(exp, ids)
        self._make_room(len(exp.step_type))
        valid = exp.step_type <= StepType.LAST
        places = self._count[ids] + np.cumsum(valid, 0) - 1
        time, row = np.nonzero(valid)
        for held, leaf in zip(self._held, leaves, strict=True):
            held[places[time, row], ids[row]] = leaf[time, row]
        self._count[ids] += valid.sum(0)
        if self._drops_cut:
            lost = self._lost(ids)
            was_cut = np.zeros_like(lost)
            if cut is not None:
                time, row = np.nonzero(cut & valid)
                was_cut[places[time, row], row] = True
            for r in np.flatnonzero((lost | was_cut).any(0)).tolist():
                self._drop_open(int(ids[r]), lost[:, r], was_cut[:, r])
        else:
            self._end_the_lost(ids)
        self._cut(ids)

    def _begin(self, exp: Experience, leaves: list[np.ndarray], streams: int) -> None:
        self._template = exp._replace(bootstrap=())
        self._count = np.zeros(streams, np.int64)
        self._held = [np.zeros((self._length + 1, streams, *x.shape[2:]), x.dtype) for x in leaves]
        self._before = [np.zeros((streams, *x.shape[2:]), x.dtype) for x in tf.nest.flatten(exp.action)]
        self._seen = np.zeros(streams, bool)
        following = tf.nest.flatten(_without_action(exp.bootstrap.time_step))
        self._next = [np.zeros((streams, *x.shape[1:]), x.dtype) for x in following]

    def _drop_after_gaps(self, exp: Experience, ids: np.ndarray) -> None:
        first = tf.nest.flatten(
            _without_action(ActionTimeStep(*(tf.nest.map_structure(lambda x: x[0], f) for f in exp[:6])))
        )
        goes_on = np.ones(len(ids), bool)
        for value, expected in zip(first, self._next, strict=True):
            goes_on &= (value == expected[ids]).reshape(len(ids), -1).all(1)
        anew = ~(self._seen[ids] & goes_on)
        self.dropped_steps += int(self._count[ids[anew]].sum())
        self._count[ids[anew]] = 0
        for before, given in zip(self._before, tf.nest.flatten(exp.prev_action), strict=True):
            before[ids[anew]] = given[0, anew]
        for kept, value in zip(self._next, tf.nest.flatten(_without_action(exp.bootstrap.time_step)), strict=True):
            kept[ids] = value
        self._seen[ids] = True

    def _make_room(self, steps: int) -> None:
        missing = self._length + 1 + steps - len(self._held[0])
        if missing > 0:
            self._held = [np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)]) for x in self._held]

    def _lost(self, ids: np.ndarray) -> np.ndarray:
        """The last steps of agents after which another has begun without their end, bool [places, len(ids)].

        Idle agents of a crashed environment have none.
        """
        types = self._held[0][:, ids]
        lost = types != StepType.LAST
        lost[:-1] &= types[1:] == StepType.FIRST
        return lost & (np.arange(1, len(types) + 1)[:, np.newaxis] < self._count[ids])

    def _end_the_lost(self, ids: np.ndarray) -> None:
        """Truncates agents whose end was lost at their last step."""
        lost = self._lost(ids)
        for r in np.flatnonzero(lost.any(0)):
            count = self._count[ids[r]]
            types, last = self._held[0][:count, ids[r]], lost[:count, r]
            once = last & (types == StepType.FIRST)
            types[last & ~once] = StepType.LAST
            # One that was seen once has learned of nothing.
            self._keep(int(ids[r]), np.flatnonzero(~once))

    def _drop_open(self, stream: int, lost: np.ndarray, cut: np.ndarray) -> None:
        """Drops what is held of agents that were lost after, or cut at, the places that are true, but for whole segments.

        A segment is whole once the step after it is known; the step that shows the cut is none of the agent's.
        """
        gone = 0
        for place in np.flatnonzero(lost | cut).tolist():
            last = place - gone
            gone += self._drop_agent(stream, last, last if cut[place] else last + 1)

    def _drop_agent(self, stream: int, last: int, known: int) -> int:
        """As `_drop_open`, of the agent whose last step is at place `last`, of whom the steps before `known` are its own.

        Returns:
          how many places the steps behind have moved up.
        """
        before = int(self._count[stream])
        self._count[stream] = known
        self._cut(np.array([stream]))
        moved = known - int(self._count[stream])
        self._count[stream] = before - moved
        end = last + 1 - moved
        begins = np.flatnonzero(self._held[0][:end, stream] == StepType.FIRST)
        begin = int(begins[-1]) if len(begins) else 0
        places = np.arange(self._count[stream])
        self._keep(stream, places[(places < begin) | (places >= end)])
        return before - int(self._count[stream])

    def _keep(self, stream: int, stays: np.ndarray) -> None:
        """Drops all of a stream that is held, but for the places `stays`."""
        for held in self._held:
            held[: len(stays), stream] = held[stays, stream]
        self.dropped_steps += int(self._count[stream]) - len(stays)
        self._count[stream] = len(stays)

    def _cut(self, ids: np.ndarray) -> None:
        """Moves whole segments, each with the step after it, to those that can be handed out."""
        length = self._length
        while True:
            full = ids[self._count[ids] > length]
            if not len(full):
                return
            moved = [x[: length + 1, full] for x in self._held]
            self._ready.append((moved, [x[full] for x in self._before]))
            actions = tf.nest.flatten(tf.nest.pack_sequence_as(self._template, moved).action)
            for before, action in zip(self._before, actions, strict=True):
                before[full] = action[length - 1]
            for held in self._held:
                held[: len(held) - length, full] = held[length:, full]
            self._count[full] -= length

    def take(self, count: int) -> Experience | None:
        """The oldest `count` segments, [1, T, count, ...] with bootstrap [1, count, ...]; None while there are fewer."""
        if count < 1 or self.ready < count:
            return None
        taken: list[list[np.ndarray]] = []
        before: list[list[np.ndarray]] = []
        while count:
            leaves, actions = self._ready.popleft()
            there = leaves[0].shape[1]
            if there > count:
                self._ready.appendleft(([x[:, count:] for x in leaves], [x[count:] for x in actions]))
                leaves, actions = [x[:, :count] for x in leaves], [x[:count] for x in actions]
            taken.append(leaves)
            before.append(actions)
            count -= min(there, count)
        return self._experience(
            [np.concatenate(parts, 1) for parts in zip(*taken, strict=True)],
            [np.concatenate(parts) for parts in zip(*before, strict=True)],
        )

    def take_apart(self) -> list[Experience]:
        """All segments that can be handed out, in batches [1, T, n, ...] of different streams, n a power of two."""
        batches = []
        while self._ready:
            whole = self._ready[0][0][0].shape[1]
            batch = self.take(1 << (whole.bit_length() - 1))
            assert batch is not None
            batches.append(batch)
        return batches

    def _experience(self, leaves: list[np.ndarray], before: list[np.ndarray]) -> Experience:
        """Experience of T + 1 steps [T + 1, n, ...], the last of which is only looked at, and the actions [n, ...] before."""
        steps: Experience = tf.nest.pack_sequence_as(self._template, leaves)
        first = steps.step_type == StepType.FIRST

        def previous(action: np.ndarray, action_before: np.ndarray) -> np.ndarray:
            shifted = np.concatenate([action_before[np.newaxis], action[:-1]])
            return np.where(first.reshape(*first.shape, *[1] * (shifted.ndim - 2)), np.zeros_like(shifted), shifted)

        prev_action = [previous(*pair) for pair in zip(tf.nest.flatten(steps.action), before, strict=True)]
        steps = steps._replace(prev_action=tf.nest.pack_sequence_as(steps.action, prev_action))
        last = tf.nest.map_structure(lambda x: x[-1], steps)
        rows = tf.nest.map_structure(lambda x: tf.constant(x[np.newaxis, :-1]), steps)
        bootstrap = Bootstrap(ActionTimeStep(*last[:6]), last.state)
        return rows._replace(bootstrap=tf.nest.map_structure(lambda x: tf.constant(x[np.newaxis]), bootstrap))


def _without_action(time_step: ActionTimeStep) -> Nest:
    """What of a time step tells whether a stream goes on: a slot that is idle has an action that means nothing."""
    return time_step._replace(prev_action=())
