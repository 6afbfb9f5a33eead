"""Checks of an environment: what alf can use, what it must not do, and what is probably not meant."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import tensorflow as tf

from alf.environments import spaces
from alf.environments.agents import has_agents
from alf.environments.batch_checker import FAIL, OK, WARN, Finding, bad_value, check_batched
from alf.environments.gymnasium_environment import close_quietly, flag
from alf.environments.one_hot import HOW_TO_SHOW_NUMBERS, one_hot_space
from alf.environments.random_actions import sample_action
from alf.environments.vectorization import EnvironmentLoader
from alf.utils.common import is_bounded
from alf.utils.exits import no_exit

# So many episodes of one length that ended in themselves are a time limit in disguise.
_SUSPICIOUS_EPISODES = 3
# The check that an environment runs at all.
_RUN = "run"


class Episode(NamedTuple):
    """An episode that ended: its actions, and how it ended."""

    length: int
    terminated: bool
    truncated: bool


class Rollout:
    """What an environment gave to random actions."""

    def __init__(self) -> None:
        self.digests: list[bytes] = []
        self.episodes: list[Episode] = []
        self.open_length = 0
        self.findings: dict[str, Finding] = {}
        self.rng = np.random.default_rng(0)

    def note(self, check: str, level: str, text: str) -> None:
        """Keeps the first finding of a check."""
        self.findings.setdefault(check, Finding(check, level, text))


def check_environment(loader: EnvironmentLoader, num_steps: int = 500, seed: int = 0) -> list[Finding]:
    """Checks what a loader makes, with random actions.

    Args:
      loader: makes the environments.
      num_steps: of each of the three single environments that are compared.
      seed: of the environments and actions; the third environment gets another.

    Returns:
      one finding for each check that could be made, failures first.
    """
    try:
        made = loader.make_one(seed)
    # Whatever a user's environment raises is a finding.
    except Exception as e:
        return [Finding("make", FAIL, f"it cannot be made: {type(e).__name__}: {e}")]
    if isinstance(made, gymnasium.Env):
        findings = _check_single(made, loader, num_steps, seed)
        size = 2
    else:
        size = rows_of(made)
        close_quietly(made)
        findings = []
    if not any(finding.level == FAIL for finding in findings):
        findings += check_batched(lambda: loader(size, seed), num_steps)
    return sorted(findings, key=lambda finding: (FAIL, WARN, OK).index(finding.level))


def rows_of(made: Any) -> int:
    """How many rows a batch has that an `EnvironmentLoader` has not adapted yet."""
    return int(getattr(made, "num_envs", 0) or getattr(made, "batch_size", 1))


def fault_of_first_step(loader: EnvironmentLoader) -> str | None:
    """What the checks of a reset and a step find to be wrong with single environments, in a sentence.

    Args:
      loader: makes the environment.

    Returns:
      None where they find nothing, the environment raises an error of its own, or it is a batch.
    """
    env = loader.make_one(0)
    try:
        found = roll_out(env, 1, 0).findings if isinstance(env, gymnasium.Env) else {}
    finally:
        close_quietly(env)
    return next((f.text for f in found.values() if f.level == FAIL and f.check != _RUN), None)


# ---- single environments ----


def _check_single(env: gymnasium.Env, loader: EnvironmentLoader, num_steps: int, seed: int) -> list[Finding]:
    try:
        findings = check_spaces(env.observation_space, env.action_space)
        if any(finding.level == FAIL for finding in findings):
            return findings
        rollout = roll_out(env, num_steps, seed)
    finally:
        close_quietly(env)
    findings += rollout.findings.values()
    if any(finding.level == FAIL for finding in findings):
        return findings
    again, other = (_roll_out_another(loader, num_steps, s) for s in (seed, seed + 1))
    return [*findings, _ends(rollout), *_seeding(rollout, again, other)]


def _roll_out_another(loader: EnvironmentLoader, num_steps: int, seed: int) -> Rollout:
    env = loader.make_one(seed)
    try:
        return roll_out(env, num_steps, seed)
    finally:
        close_quietly(env)


def check_spaces(observation_space: gymnasium.Space, action_space: gymnasium.Space) -> list[Finding]:
    """Whether alf has specs for the spaces, and what it will do to the values."""
    try:
        observation, action = spaces.observation_spec(observation_space), spaces.action_spec(action_space)
    except ValueError as e:
        return [Finding("spaces", FAIL, str(e))]
    findings = [Finding("spaces", OK, f"observation {describe(observation)}; action {describe(action)}")]
    for leaf in tf.nest.flatten(action):
        if np.issubdtype(leaf.dtype, np.floating) and not is_bounded(leaf.minimum, leaf.maximum):
            findings.append(
                Finding(
                    "action bounds",
                    WARN,
                    f"{leaf.name} has no finite bounds: give its Box low and high, so that actions can be scaled and clipped.",
                )
            )
    told = spaces.without_numbers(observation)
    if told is not None:
        findings.append(Finding("size", WARN, told))
    if not has_agents(observation_space) and one_hot_space(observation_space) != observation_space:
        findings.append(
            Finding(
                "numbers",
                WARN,
                f"networks take the numbers in {observation_space} for quantities: {HOW_TO_SHOW_NUMBERS}.",
            )
        )
    return findings


def describe(spec: Any) -> str:
    """Leaves of a nest of specs, as dtype[shape]."""
    leaves = tf.nest.flatten(spec)
    texts = [f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for leaf in leaves]
    return ", ".join(texts) if texts else "nothing"


def roll_out(env: gymnasium.Env, num_steps: int, seed: int) -> Rollout:
    """Takes random actions and looks at everything that comes back; stops at the first failure."""
    rollout = Rollout()
    env.action_space.seed(0)
    try:
        with no_exit("The environment"):
            previous = _reset(env, rollout, seed)
            for step in range(num_steps):
                if any(finding.level == FAIL for finding in rollout.findings.values()):
                    return rollout
                previous = _step(env, rollout, step, previous)
    except Exception as e:
        rollout.note(_RUN, FAIL, f"it raised {type(e).__name__} after {len(rollout.digests)} values: {e}")
    else:
        rollout.note(_RUN, OK, f"{num_steps} steps with random actions, {len(rollout.episodes)} episodes")
    return rollout


def _reset(env: gymnasium.Env, rollout: Rollout, seed: int | None = None) -> Any:
    result = env.reset(seed=seed)
    if not (isinstance(result, tuple) and len(result) == 2):
        rollout.note("reset", FAIL, f"reset() must return (observation, info); it returned {_kind(result)}.")
        return None
    rollout.open_length = 0
    _look_at(env, rollout, result[0], "reset")
    rollout.digests.append(_digest(result[0]))
    return result[0]


def _step(env: gymnasium.Env, rollout: Rollout, step: int, previous: Any) -> Any:
    before = _digest(previous)
    result = env.step(sample_action(env.action_space, rollout.rng, previous))
    if not (isinstance(result, tuple) and len(result) == 5):
        rollout.note(
            "step",
            FAIL,
            f"step() must return (observation, reward, terminated, truncated, info); it returned {_kind(result)}.",
        )
        return None
    observation, reward, terminated, truncated, _ = result
    terminated, truncated = flag(terminated), flag(truncated)
    _look_at(env, rollout, observation, f"step {step}")
    _look_at_reward(rollout, reward, step)
    if any(isinstance(leaf, np.ndarray) for leaf in leaves(previous)) and _digest(previous) != before:
        rollout.note(
            "buffers",
            OK,
            "the environment writes into the arrays that it has handed out; alf copies them, so that is safe",
        )
    rollout.digests.append(_digest((observation, reward, terminated, truncated)))
    rollout.open_length += 1
    if terminated or truncated:
        rollout.episodes.append(Episode(rollout.open_length, terminated, truncated))
        return _reset(env, rollout)
    return observation


def _look_at(env: gymnasium.Env, rollout: Rollout, observation: Any, when: str) -> None:
    space = env.observation_space
    try:
        pairs = list(_pairs(space, observation, "observation"))
    except (KeyError, TypeError, IndexError) as e:
        rollout.note("structure", FAIL, f"at {when} the observation is not built as its space says: {e!r}.")
        return
    for name, part, value in pairs:
        array = np.asarray(value)
        if array.shape != part.shape:
            rollout.note(
                "shapes",
                FAIL,
                f"at {when} {name} {'is None' if value is None else f'has shape {array.shape}'} where its space says "
                f"{part.shape}: correct one.",
            )
        elif array.dtype != part.dtype:
            _look_at_cast(rollout, array, part, f"at {when} {name}")
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            rollout.note("finite", FAIL, f"at {when} {name} holds {bad_value(array)}: correct the environment.")
        elif array.shape == part.shape and not part.contains(np.asarray(array, part.dtype)):
            rollout.note(
                "bounds",
                WARN,
                f"at {when} {name} is outside its space ({array.min()} to {array.max()}): widen its bounds.",
            )


def _look_at_cast(rollout: Rollout, array: np.ndarray, part: gymnasium.Space, what: str) -> None:
    dtype = np.dtype(part.dtype)
    try:
        if dtype.kind in "iub":
            spaces.whole_numbers(array, dtype, part)
    except ValueError as error:
        rollout.note("values", FAIL, f"{what}: {error}")
    else:
        rollout.note("dtypes", WARN, f"{what} is {array.dtype} where its space says {dtype}: alf casts it.")


def _look_at_reward(rollout: Rollout, reward: Any, step: int) -> None:
    try:
        value = float(np.reshape(reward, ()))
    except (TypeError, ValueError):
        rollout.note("reward", FAIL, f"at step {step} the reward is {_kind(reward)}, not a number.")
        return
    if not np.isfinite(value):
        rollout.note("finite", FAIL, f"at step {step} the reward is {value}: correct the environment.")


def _pairs(space: gymnasium.Space, value: Any, name: str) -> Iterator[tuple[str, gymnasium.Space, Any]]:
    """The leaves of a space, each with its part of the value."""
    if isinstance(space, gymnasium.spaces.Dict):
        for key, sub in space.spaces.items():
            yield from _pairs(sub, value[key], f"{name}/{key}")
    elif isinstance(space, gymnasium.spaces.Tuple):
        for i, sub in enumerate(space.spaces):
            yield from _pairs(sub, value[i], f"{name}/{i}")
    else:
        yield name, space, value


def leaves(value: Any) -> Iterator[Any]:
    """What a nest of dicts, tuples and lists holds."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from leaves(value[key])
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def _digest(value: Any) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for leaf in leaves(value):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.digest()


def _ends(rollout: Rollout) -> Finding:
    episodes = rollout.episodes
    if not episodes:
        return Finding(
            "ends",
            WARN,
            f"no episode ended within {rollout.open_length} steps: returns are known only when one ends; set a time limit, "
            "such as suite_gym.load.max_episode_steps.",
        )
    terminated = sum(e.terminated for e in episodes)
    lengths = {e.length for e in episodes}
    if len(episodes) >= _SUSPICIOUS_EPISODES and len(lengths) == 1 and terminated == len(episodes):
        return Finding(
            "ends",
            WARN,
            f"all {len(episodes)} episodes ended after exactly {lengths.pop()} steps with terminated=True: if that is a "
            "time limit, it must be truncated=True, or the value of the last state is lost.",
        )
    both = sum(e.terminated and e.truncated for e in episodes)
    mean = float(np.mean([e.length for e in episodes]))
    return Finding(
        "ends",
        OK,
        f"{len(episodes)} episodes of {mean:.0f} steps on average: {terminated} terminated, "
        f"{len(episodes) - terminated + both} truncated",
    )


def _seeding(rollout: Rollout, again: Rollout, other: Rollout) -> Iterator[Finding]:
    if rollout.digests != again.digests:
        pairs = zip(rollout.digests, again.digests, strict=False)
        where = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(rollout.digests), len(again.digests)))
        yield Finding(
            "seed",
            WARN,
            f"two environments with one seed and the same actions differ from value {where} on: runs cannot be repeated; use "
            "self.np_random, seeded by super().reset(seed=seed).",
        )
    elif rollout.digests == other.digests:
        yield Finding("seed", OK, "one seed gives the same episodes, and so does another: nothing in it is random")
    else:
        yield Finding("seed", OK, "one seed gives the same episodes, another one others")


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
