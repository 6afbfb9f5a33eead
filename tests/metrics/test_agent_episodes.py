"""Episodes of single agents against a plain double loop over every slot."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from alf.metrics.agent_episodes import MOST_SLOTS, AgentEpisodes, AgentStreams

FIRST, MID, LAST, IDLE = range(4)
SLOTS = {"chaser": 2, "runner": 1}


def _next_slot(before, env_type, draw):
    """The step type of a slot after `before`, as an environment may choose it."""
    if env_type == FIRST or before in (LAST, None):
        return FIRST if draw < 0.6 else IDLE
    if before == IDLE:
        # An agent that waits goes on, ends, or another one appears in an empty slot.
        return (FIRST, MID, LAST, IDLE)[int(draw * 4)]
    return MID if draw < 0.5 else LAST if draw < 0.75 else IDLE


def _streams(seed, threads, batch, rows):
    """Environment step types [threads, rows, B]; step types and rewards [threads, rows, B, K] by behavior."""
    rng = np.random.default_rng(seed)
    env = np.zeros((threads, rows, batch), np.int32)
    for t in range(1, rows):
        over = rng.random((threads, batch)) < 0.2
        env[:, t] = np.where(env[:, t - 1] == LAST, FIRST, np.where(over, LAST, MID))
    found = {}
    for name, count in SLOTS.items():
        types = np.zeros((threads, rows, batch, count), np.int32)
        for i, b, k in np.ndindex(threads, batch, count):
            before = None
            for t in range(rows):
                before = types[i, t, b, k] = _next_slot(before, env[i, t, b], rng.random())
        rewards = rng.integers(-5, 6, types.shape).astype(np.float32)
        found[name] = types, np.where(types == IDLE, np.float32(np.nan), rewards)
    return env, found


def _oracle(env, types, rewards):
    """[(t, row, slot, return, length, cut)] of one thread, in the order of time."""
    ended = []
    for b, k in np.ndindex(types.shape[1:]):
        total = length = 0
        for t in range(len(types)):
            now = types[t, b, k]
            if env[t, b] == FIRST or now == FIRST:
                total = length = 0
            if now in (MID, LAST):
                total += float(rewards[t, b, k])
                length += 1
            if now == LAST or (now == MID and env[t, b] == LAST):
                ended.append((t, b, k, total, length, now == MID))
                total = length = 0
    return sorted(ended)


def _segment(env, found, thread, start, stop):
    return SimpleNamespace(
        step_type=env[thread, start:stop],
        observation={
            name: {"step_type": types[thread, start:stop], "reward": rewards[thread, start:stop]}
            for name, (types, rewards) in found.items()
        },
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    threads=st.integers(1, 2),
    batch=st.integers(1, 4),
    segments=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_equal_to_a_double_loop(seed, threads, batch, segments):
    env, found = _streams(seed, threads, batch, sum(segments))
    told = []
    episodes = AgentEpisodes(SLOTS, threads, batch, (lambda name, thread, ended: told.append((name, thread, ended)),))
    start = 0
    for length in segments:
        for thread in range(threads):
            episodes(_segment(env, found, thread, start, start + length), thread)
        start += length
    for name, (types, rewards) in found.items():
        expected = [_oracle(env[i], types[i], rewards[i]) for i in range(threads)]
        for thread in range(threads):
            seen = [row for n, i, ended in told if (n, i) == (name, thread) for row in zip(*ended, strict=True)]
            assert [tuple(map(float, row)) for row in seen] == [tuple(map(float, e[1:])) for e in expected[thread]]
        assert episodes.scalars()[f"{name}/NumberOfEpisodes"] == sum(map(len, expected))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 60), batch=st.sampled_from([2, 11]))
def test_averages_are_over_the_last_episodes(seed, rows, batch):
    env, found = _streams(seed, 1, batch, rows)
    episodes = AgentEpisodes(SLOTS, 1, batch)
    # As PolicyDriver calls it, with single steps [B].
    for t in range(rows):
        step = _segment(env, found, 0, t, t + 1)
        step.step_type = step.step_type[0]
        step.observation = {n: {k: v[0] for k, v in part.items()} for n, part in step.observation.items()}
        episodes(step)
    averages = episodes.averages()
    scalars = episodes.scalars()
    for name, (types, rewards) in found.items():
        ended = _oracle(env[0], types[0], rewards[0])
        # Windows: the last max(B * K, 10) of a behavior, the last max(B, 10) of a slot.
        window = max(batch * SLOTS[name], 10)
        returns, lengths = [e[3] for e in ended][-window:], [e[4] for e in ended][-window:]
        assert (f"{name}/AverageReturn" in averages) == bool(ended)
        if ended:
            assert averages[f"{name}/AverageReturn"] == np.mean(returns)
            assert np.isclose(scalars[f"{name}/AverageReturn_std"], np.std(returns))
            assert averages[f"{name}/AverageEpisodeLength"] == np.mean(lengths)
            assert episodes.returns()[name] == (np.mean(returns), np.std(returns), len(returns))
        for k in range(SLOTS[name]):
            mine = [e[3] for e in ended if e[2] == k][-max(batch, 10) :]
            told = averages.get(f"{name}/{k}/AverageReturn")
            # Of a behavior with one slot, nothing is told twice.
            assert told == (np.mean(mine) if mine and SLOTS[name] > 1 else None)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), before=st.integers(0, 20), after=st.integers(1, 20))
def test_a_saved_state_goes_on_where_it_was(seed, before, after):
    env, found = _streams(seed, 2, 3, before + after)

    def feed(episodes, start, stop):
        for thread in range(2):
            if stop > start:
                episodes(_segment(env, found, thread, start, stop), thread)

    whole = AgentEpisodes(SLOTS, 2, 3)
    feed(whole, 0, before)
    text = json.dumps({k: v.tolist() for k, v in whole.state_dict().items()})
    resumed = AgentEpisodes(SLOTS, 2, 3)
    resumed.load_state_dict({k: np.array(v) for k, v in json.loads(text).items()})
    for episodes in (whole, resumed):
        feed(episodes, before, before + after)
    assert resumed.scalars() == whole.scalars()


def test_slots_are_told_apart_up_to_a_number():
    for count in (MOST_SLOTS, MOST_SLOTS + 1):
        episodes = AgentEpisodes({"crowd": count}, 1, 1)
        for step_type in (FIRST, LAST):
            crowd = {"step_type": np.full((1, count), step_type), "reward": np.ones((1, count))}
            episodes(SimpleNamespace(step_type=np.array([step_type]), observation={"crowd": crowd}))
        told = [name for name in episodes.averages() if name.count("/") == 2]
        assert len(told) == (count if count == MOST_SLOTS else 0)


def test_a_state_of_other_sizes_keeps_what_fits():
    env, found = _streams(3, 2, 3, 40)
    old = AgentEpisodes(SLOTS, 2, 3)
    old(_segment(env, found, 0, 0, 40), 0)
    new = AgentEpisodes({"runner": 1, "another": 2}, 1, 4)
    new.load_state_dict(old.state_dict())
    assert new.scalars()["runner/NumberOfEpisodes"] == old.scalars()["runner/NumberOfEpisodes"] > 0
    assert new.scalars()["another/NumberOfEpisodes"] == 0
    assert new.returns()["runner"] == old.returns()["runner"]


def test_a_crash_repeats_what_was_seen_and_cuts():
    """A slot is MID with reward 0 where the environment's episode is cut; who has ended there is idle."""
    streams = AgentStreams(1, 2)
    env = np.array([[FIRST], [MID], [LAST], [FIRST]])
    types = np.array([[[FIRST, FIRST]], [[MID, LAST]], [[MID, IDLE]], [[FIRST, FIRST]]])
    rewards = np.array([[[9.0, 9.0]], [[1.0, 2.0]], [[0.0, 0.0]], [[9.0, 9.0]]])
    ended = streams.take(env, types, rewards)
    assert [tuple(row) for row in zip(*(x.tolist() for x in ended), strict=True)] == [
        (0, 1, 2.0, 1, False),
        (0, 0, 1.0, 2, True),
    ]


def test_who_never_saw_what_an_action_led_to_has_no_episode():
    ended = AgentStreams(1, 1).take(np.array([[FIRST], [LAST]]), np.array([[[IDLE]], [[FIRST]]]), np.ones((2, 1, 1)))
    assert len(ended.row) == 0
