"""Agents that come, go and idle: their decision steps, joined, against plain bookkeeping of each stream."""

from __future__ import annotations

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.agent_processor import AgentProcessor
from alf.data_structures import ActionTimeStep, Bootstrap, Experience

FIRST, MID, LAST, IDLE = 0, 1, 2, 3


class Stream:
    """One slot: its own steps in a plain list, every number telling which step it is."""

    def __init__(self, stream: int, rng: np.random.Generator) -> None:
        self.stream, self.rng = stream, rng
        self.step_type, self.serial, self.action = IDLE, 0, 0
        self.steps: list[dict[str, int]] = []
        self.advance()

    def advance(self) -> None:
        """What the slot shows next: an agent's next step, its end, a new agent, or nobody."""
        open_ = self.alive
        if self.rng.random() < 0.4:
            self.step_type = IDLE
            return
        self.step_type = (LAST if self.rng.random() < 0.3 else MID) if open_ else FIRST
        self.alive = self.step_type != LAST
        self.serial += 1

    alive = False

    def row(self) -> dict[str, int]:
        """The present step; an idle one is full of nonsense."""
        if self.step_type == IDLE:
            nonsense = int(self.rng.integers(1000, 2000))
            return {"step_type": IDLE, "serial": -nonsense, "action": -nonsense, "prev_action": -nonsense}
        action = 100_000 * (self.stream + 1) + self.serial
        row = {
            "step_type": self.step_type,
            "serial": self.serial,
            "action": action,
            "prev_action": 0 if self.step_type == FIRST else self.action,
        }
        self.action = action
        return row


def _time_step(rows: list[dict[str, int]], streams: np.ndarray) -> ActionTimeStep:
    column = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    serial = column["serial"].astype(np.float32)
    return ActionTimeStep(
        step_type=column["step_type"].astype(np.int32),
        reward=serial,
        discount=np.ones(len(rows), np.float32),
        observation=np.stack([streams.astype(np.float32), serial], -1),
        # What the driver holds of an idle slot means nothing: the processor finds the action before by itself.
        prev_action=column["prev_action"] * 0 - 7,
        env_id=streams.astype(np.int32),
    )


def _batches(count: int, streams: int, length: int, seed: int, slot_class: type[Stream] = Stream):
    """Batches [T', R] of all streams with their bootstraps, each stream's own steps in order, and the rows [T'][R]."""
    rng = np.random.default_rng(seed)
    slots = [slot_class(i, rng) for i in range(streams)]
    ids = np.arange(streams)
    own: list[list[dict[str, int]]] = [[] for _ in slots]
    rows = [slot.row() for slot in slots]
    for _ in range(count):
        times = []
        for _ in range(length):
            times.append(rows)
            for steps, row in zip(own, rows, strict=True):
                if row["step_type"] != IDLE:
                    steps.append(row)
            for slot in slots:
                slot.advance()
            rows = [slot.row() for slot in slots]
        steps = [_time_step(r, ids) for r in times]
        stacked = ActionTimeStep(*(np.stack(x) for x in zip(*steps, strict=True)))
        action = np.array([[row["action"] for row in r] for r in times])
        yield (
            Experience(
                *stacked,
                action=action,
                rollout_info=(action.astype(np.float32),),
                state=action[..., np.newaxis].astype(np.float32),
                policy_version=np.zeros((length, streams), np.int64),
                bootstrap=Bootstrap(_time_step(rows, ids), np.array([[row["action"]] for row in rows], np.float32)),
            ),
            own,
            times,
        )


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(
    streams=st.integers(1, 5),
    length=st.integers(1, 6),
    arriving=st.integers(1, 7),
    batch=st.integers(1, 6),
    apart=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_every_decision_step_comes_out_once_in_its_stream_and_in_order(streams, length, arriving, batch, apart, seed):
    processor = AgentProcessor(length)
    found: list[list[dict[str, float]]] = [[] for _ in range(streams)]
    for exp, own, _ in _batches(12, streams, arriving, seed):
        processor.add(exp, streams)
        if apart:
            taken = processor.take_apart()
        else:
            taken = list(iter(lambda: processor.take(batch), None))
        for segment in (tf.nest.map_structure(lambda x: x.numpy(), exp) for exp in taken):
            width = segment.step_type.shape[2]
            assert segment.step_type.shape == (1, length, width)
            if apart:
                assert len(set(segment.env_id[0, 0])) == width
                assert width & (width - 1) == 0
            for row in range(width):
                _take_in(segment, row, found)
        delivered = sum(len(steps) for steps in found)
        assert delivered + processor.held_steps == sum(len(steps) for steps in own)
        assert processor.dropped_steps == 0
    for stream, (mine, theirs) in enumerate(zip(own, found, strict=True)):
        for expected, got in zip(mine, theirs, strict=False):
            assert got == {**expected, "stream": stream, "state": expected["action"]}
        if apart:
            # All that can be handed out is: what is left is less than a segment and the step after it.
            assert len(mine) - len(theirs) <= length


def _take_in(segment: Experience, row: int, found: list[list[dict[str, float]]]) -> None:
    stream = int(segment.env_id[0, 0, row])
    steps = [_plain(segment, (0, t, row)) for t in range(segment.step_type.shape[1])]
    found[stream] += steps
    after = segment.bootstrap
    assert int(after.time_step.env_id[0, row]) == stream
    # The step after the segment is the next one of the same stream.
    assert float(after.time_step.reward[0, row]) == steps[-1]["serial"] + 1
    first = int(after.time_step.step_type[0, row]) == FIRST
    assert int(after.time_step.prev_action[0, row]) == (0 if first else steps[-1]["action"])
    assert float(after.state[0, row, 0]) == 100_000 * (stream + 1) + steps[-1]["serial"] + 1


def _plain(exp: Experience, at: tuple[int, ...]) -> dict[str, float]:
    assert float(exp.reward[at]) == float(exp.observation[at][1])
    assert float(exp.rollout_info[0][at]) == float(exp.action[at])
    assert int(exp.env_id[at]) == int(exp.observation[at][0])
    return {
        "step_type": int(exp.step_type[at]),
        "serial": float(exp.reward[at]),
        "action": int(exp.action[at]),
        "prev_action": int(exp.prev_action[at]),
        "stream": int(exp.env_id[at]),
        "state": float(exp.state[at][0]),
    }


def test_what_follows_a_gap_is_not_joined_to_what_was_before():
    """A batch that a driver dropped: the open steps before it are dropped and counted, nothing is made up."""
    processor = AgentProcessor(4)
    found: list[list[dict[str, float]]] = [[] for _ in range(3)]
    for i, (exp, _, _) in enumerate(_batches(10, 3, 5, 1)):
        if i == 4:
            held = processor.held_steps - 4 * processor.ready
            continue
        processor.add(exp, 3)
        if i == 5:
            assert processor.dropped_steps == held > 0
        for segment in processor.take_apart():
            for row in range(segment.step_type.shape[2]):
                stream = int(segment.env_id[0, 0, row])
                serials = [float(x) for x in segment.reward.numpy()[0, :, row]]
                assert serials == list(np.arange(serials[0], serials[0] + 4))
                found[stream] += serials
    assert all(found)


def test_a_gap_is_seen_in_one_number_of_the_observation() -> None:
    """All else is the same before and behind it: types, rewards and what the observation tells of the slot."""
    processor = AgentProcessor(2)
    for serials in ([1, 2], [6, 7]):
        rows = [{"step_type": MID, "serial": serial, "action": serial, "prev_action": 0} for serial in [*serials, 3]]
        steps = [_time_step([row], np.zeros(1))._replace(reward=np.ones(1, np.float32)) for row in rows]
        stacked = ActionTimeStep(*(np.stack(x) for x in zip(*steps[:2], strict=True)))
        action = np.array([[row["action"]] for row in rows[:2]])
        processor.add(Experience(*stacked, action=action, bootstrap=Bootstrap(steps[2], ())), 1)
    assert processor.dropped_steps == 2
    assert processor.held_steps == 2


def test_behind_a_gap_the_action_before_is_the_one_that_was_given() -> None:
    processor = AgentProcessor(4)
    before: dict[int, tuple[int, int]] = {}
    for i, (exp, _, _) in enumerate(_batches(8, 6, 5, 1)):
        if i != 4:
            processor.add(exp, 6)
        segments = processor.take_apart()
        for segment in segments if i > 4 else ():
            for row, stream in enumerate(segment.env_id.numpy()[0, 0].tolist()):
                first = int(segment.step_type[0, 0, row]), int(segment.prev_action[0, 0, row])
                before.setdefault(stream, first)
    assert set(before) == set(range(6))
    assert {given for kind, given in before.values() if kind == FIRST} <= {0}
    assert {given for kind, given in before.values() if kind != FIRST} == {-7}


def test_memory_does_not_grow_with_the_agents_seen():
    processor = AgentProcessor(8)
    sizes = set()
    for exp, _, _ in _batches(200, 4, 16, 3):
        processor.add(exp, 4)
        processor.take_apart()
        sizes.add(sum(x.nbytes for x in processor._held))
    assert len(sizes) == 1


# ---- agents that are cut ----


class CutStream(Stream):
    """A slot whose agents are also cut: truncated with the episode of their environment, or gone without an end."""

    cut = False

    def advance(self) -> None:
        lost = self.alive and self.rng.random() < 0.1
        if lost:
            self.alive = False
        super().advance()
        self.cut = self.step_type == LAST and bool(self.rng.random() < 0.5)

    def row(self) -> dict[str, int]:
        return {**super().row(), "cut": int(self.cut)}


def _cut_batches(count: int, streams: int, length: int, seed: int):
    """As `_batches`, with which steps [T', R] are cuts; each stream's own steps tell it too."""
    for exp, own, times in _batches(count, streams, length, seed, CutStream):
        yield exp, np.array([[bool(row["cut"]) for row in rows] for rows in times]), own


def _episodes(own: list[dict[str, int]]) -> list[tuple[list[int], bool]]:
    """The serial numbers of the steps of each agent of a stream, and whether it came to an end of its own."""
    found: list[tuple[list[int], bool]] = []
    for step in own:
        serials = [] if step["step_type"] == FIRST else found.pop()[0]
        found.append(([*serials, step["serial"]], step["step_type"] == LAST and not step["cut"]))
    return found


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(
    streams=st.integers(1, 4), length=st.integers(1, 6), arriving=st.integers(1, 9), seed=st.integers(0, 10_000)
)
def test_what_was_cut_can_be_dropped_and_nothing_joins_across_it(streams, length, arriving, seed):
    processor = AgentProcessor(length, drops_cut=True)
    found: list[list[int]] = [[] for _ in range(streams)]
    for exp, cut, own in _cut_batches(14, streams, arriving, seed):
        processor.add(exp, streams, cut)
        for segment in processor.take_apart():
            types, serials = segment.step_type.numpy()[0], segment.reward.numpy()[0]
            after = segment.bootstrap.time_step
            for row in range(types.shape[1]):
                stream = int(segment.env_id[0, 0, row])
                found[stream] += serials[:, row].astype(int).tolist()
                # Each step is followed by that of the same agent; an end by the begin of another one.
                kinds = [*types[:, row], int(after.step_type[0, row])]
                numbers = [*serials[:, row], float(after.reward[0, row])]
                for t in range(length):
                    assert (kinds[t + 1] == FIRST) == (kinds[t] == LAST)
                    assert kinds[t] == LAST or numbers[t + 1] == numbers[t] + 1
        assert sum(map(len, found)) + processor.held_steps + processor.dropped_steps == sum(map(len, own))
    for stream in range(streams):
        learned = found[stream]
        assert learned == sorted(set(learned))
        cuts = {step["serial"] for step in own[stream] if step["cut"]}
        assert not cuts & set(learned)
        for serials, whole in _episodes(own[stream]):
            mine = [s for s in serials if s in set(learned)]
            # Of one that was cut a first part may be in segments that were whole by then; others are there to the end.
            assert mine == serials[: len(mine)]
            later = [s for s in learned if s > serials[-1]]
            if whole and later:
                assert mine == serials


@pytest.mark.parametrize("seed", range(4))
def test_what_is_dropped_does_not_depend_on_how_the_steps_arrive(seed):
    """One at a time, or so many at once that agents begin, are cut and end within a batch."""
    learned, dropped = [], []
    for arriving in (1, 4, 24):
        processor = AgentProcessor(3, drops_cut=True)
        found: list[list[int]] = [[] for _ in range(3)]
        for exp, cut, _ in _cut_batches(96 // arriving, 3, arriving, seed):
            processor.add(exp, 3, cut)
            for segment in processor.take_apart():
                for row, stream in enumerate(segment.env_id[0, 0].numpy()):
                    found[stream] += segment.reward.numpy()[0, :, row].astype(int).tolist()
        learned.append(found)
        dropped.append(processor.dropped_steps)
    assert dropped[0] > 0
    assert learned[0] == learned[1] == learned[2]
    assert dropped[0] == dropped[1] == dropped[2]


def test_truncated_is_the_default():
    processor = AgentProcessor(3)
    batches = list(_cut_batches(20, 3, 5, 2))
    for exp, _, _ in batches:
        processor.add(exp, 3)
    own = batches[-1][2]
    assert any(step["cut"] for steps in own for step in steps)
    # An agent that was lost when it was seen once has learned of nothing; all others are there.
    lost_at_once = sum(a["step_type"] == FIRST == b["step_type"] for steps in own for a, b in itertools.pairwise(steps))
    assert processor.dropped_steps == lost_at_once
