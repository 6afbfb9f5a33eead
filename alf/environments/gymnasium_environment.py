"""Gymnasium environments, single or vectorised, as batched environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf
from absl import logging
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from tf_agents.trajectories import time_step as ts

from alf.environments import sole_use, spaces
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.phases import tell_phase

# How often a row that is done as soon as it is reset is reset again before that is an error.
_MAX_EMPTY_EPISODES = 10

# Names under which environments tell in their info whether a step was a success, and how many lives are left.
_SUCCESS = ("success", "is_success")
_LIVES = "lives"
_TOLD: dict[str, type] = {**dict.fromkeys(_SUCCESS, bool), _LIVES: int}

# In what a number may come that has axes of one.
_WITH_AXES = {np.ndarray, list, tuple}

RawStep = tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class GymnasiumEnvironment(BatchedEnvironment):
    """What the adapters share: specs from spaces, and the seeds of the first reset."""

    _env: Any

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        batch_size: int,
        seeds: Sequence[int] | None,
    ) -> None:
        """Keeps the specs.

        Args:
          observation_space: of a single environment.
          action_space: of a single environment.
          batch_size: B.
          seeds: B integers for the first reset; later resets go on with the same random streams. None: not seeded.

        Raises:
          ValueError: a space that has no spec, or another number of seeds than B.
        """
        super().__init__()
        if seeds is not None and len(seeds) != batch_size:
            raise ValueError(f"{batch_size} environments need as many seeds; got {len(seeds)}: {list(seeds)}.")
        self._observation_spec = spaces.observation_spec(observation_space)
        self._action_spec = spaces.action_spec(action_space)
        self._batch_size = batch_size
        self._seeds = None if seeds is None else list(seeds)
        self._checked = False
        self._info: Any = {}
        self._lives: np.ndarray | None = None

    @property
    def batch_size(self) -> int:
        """B."""
        return self._batch_size

    def observation_spec(self) -> Any:
        """That of the observation space; see `spaces.observation_spec`."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """That of the action space; see `spaces.action_spec`."""
        return self._action_spec

    @property
    def successes(self) -> np.ndarray | None:
        """Bool [B]: "success" or "is_success" in the info of the last step; None where it has neither."""
        info = self._rows_info()
        told = (self._of_rows(info[name], bool) for name in _SUCCESS if name in info)
        return next((rows for rows in told if rows is not None), None)

    @property
    def lives(self) -> np.ndarray | None:
        """Int [B]: "lives" in the info of the last step or reset, None as long as there were none.

        A row that tells none at a step has those that it had when this was asked before.
        """
        info = self._rows_info()
        rows = self._of_rows(info[_LIVES], int) if _LIVES in info else None
        if rows is not None:
            # Gymnasium has 0 where a row tells none, and says under this name which rows tell some.
            tells = info.get(f"_{_LIVES}", True)
            before = np.zeros_like(rows) if self._lives is None else self._lives
            self._lives = np.where(tells, rows, before)
        return self._lives

    def render(self, mode: str = "rgb_array") -> np.ndarray | None:
        """See `BatchedEnvironment.render`; the environment must have been made with a `render_mode`."""
        del mode
        return one_picture(self._env.render() if self._env.render_mode else None)

    def close(self) -> None:
        """Closes the environment, or vector of environments."""
        try:
            self._env.close()
        finally:
            sole_use.end(self._env, self)

    def _rows_info(self) -> Mapping[str, Any]:
        """What the rows tell, by name, in arrays [B] or numbers for all."""
        return self._info or {}

    def _of_rows(self, told: Any, kind: type) -> np.ndarray | None:
        """What the rows tell, [B], 0 where one tells no number; None where none does, or they are not B."""
        try:
            array = np.ravel(told)
        except ValueError:
            return None
        if array.size not in (1, self._batch_size):
            return None
        if array.dtype.kind not in "biu":
            numbers = [_number(value, kind) for value in array]
            if all(number is None for number in numbers):
                return None
            array = np.array([number or 0 for number in numbers])
        return np.broadcast_to(array.astype(np.int64 if kind is int else kind), [self._batch_size])

    @property
    def frames_per_step(self) -> int:
        """See `BatchedEnvironment.frames_per_step`."""
        return spaces.frames_per_step(self._env)

    def _take_seeds(self) -> list[int] | None:
        seeds, self._seeds = self._seeds, None
        return seeds

    def _first(self, observation: Any) -> ts.TimeStep:
        """The time step of a reset; the first one's shapes are checked."""
        if not self._checked:
            self._check_shapes(observation)
            self._checked = True
        size = self._batch_size
        return ts.TimeStep(np.zeros(size, np.int32), np.zeros(size, np.float32), np.ones(size, np.float32), observation)

    def _check_shapes(self, observation: Any) -> None:
        def check(spec: Any, value: np.ndarray) -> None:
            if value.shape != (self._batch_size, *spec.shape):
                raise ValueError(
                    f"The environment's {spec.name} has shape {value.shape[1:]} where its observation space says "
                    f"{tuple(spec.shape)} (batch of {self._batch_size}, got {value.shape}): correct the space."
                )

        tf.nest.map_structure(check, self._observation_spec, observation)


class SingleEnvironment(GymnasiumEnvironment):
    """One `gymnasium.Env` as a batch of one, without the cost of a vector environment."""

    def __init__(self, env: gymnasium.Env, seeds: Sequence[int] | None = None) -> None:
        """Adapts `env`, which is closed with this.

        Args:
          env: the environment; reset here, after each end.
          seeds: one integer for the first reset, or None.

        Raises:
          ValueError: see `GymnasiumEnvironment`; or the environment is stepped already.
        """
        super().__init__(env.observation_space, env.action_space, 1, seeds)
        self._env = env
        sole_use.begin(env, self)
        self._convert = spaces.observation_converter(env.observation_space, single=True)
        self._to_env = spaces.action_converter(env.action_space, single=True)
        self._done = True

    def _reset(self) -> ts.TimeStep:
        seeds = self._take_seeds()
        observation, self._info = self._env.reset(seed=seeds[0] if seeds else None)
        self._done = False
        return self._first(self._convert(observation))

    def _step(self, action: Any) -> ts.TimeStep:
        if self._done:
            return self._reset()
        observation, reward, terminated, truncated, self._info = self._env.step(self._to_env(action))
        terminated = flag(terminated)
        self._done = terminated or flag(truncated)
        return ts.TimeStep(
            step_type=np.array([2 if self._done else 1], np.int32),
            reward=np.array(reward, np.float32).reshape(1),
            discount=np.array([0.0 if terminated else 1.0], np.float32),
            observation=self._convert(observation),
        )

    def _rows_info(self) -> Mapping[str, Any]:
        return told_info(self._info)

    def enter_phase(self, phase: str) -> None:
        """Tells the environment's wrappers."""
        tell_phase(self._env, phase)


class VectorEnvironment(GymnasiumEnvironment):
    """A `gymnasium.vector.VectorEnv` as a batched environment.

    Inside, the autoreset mode is NEXT_STEP: a row that ended is reset by the next step, which ignores its action, and
    so gives its LAST and its FIRST one after the other. Gymnasium's own SyncVectorEnv and AsyncVectorEnv are brought to
    that mode; another vector environment in another mode is refused.
    """

    def __init__(self, env: VectorEnv, seeds: Sequence[int] | None = None, channels_first: bool = False) -> None:
        """Adapts `env`, which is closed with this.

        Args:
          env: the vector environment, not yet reset.
          seeds: B integers for the first reset, or None. A vector environment with one random stream takes the first.
          channels_first: the observations are images [channels, height, width], to be turned to channels last, as
            TensorFlow has them.

        Raises:
          ValueError: a space without a spec, an autoreset mode that cannot give LAST and FIRST of a row, or actions that
            Gymnasium cannot share out to rows, or an environment that is stepped already.
        """
        gymnasiums_own = isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        if gymnasiums_own and spaces.has_empty_part(env.single_action_space):
            raise ValueError(
                f"The action space {env.single_action_space} has an empty part, which Gymnasium cannot share out to several "
                'rows: leave that out, or have one row, vectorization="single".'
            )
        observed = env.single_observation_space
        shown = spaces.channels_last(observed) if channels_first else observed
        super().__init__(shown, env.single_action_space, env.num_envs, seeds)
        self._env = next_step_autoreset(env)
        sole_use.begin(self._env, self)
        self._step_env: Callable[[Any], tuple[Any, ...]] = self._env.step
        self._convert = spaces.images_to_channels_last if channels_first else spaces.observation_converter(observed)
        self._to_env = spaces.action_converter(env.single_action_space)
        self._done = np.zeros(self._batch_size, bool)
        self._any_done = False

    def _reset(self) -> ts.TimeStep:
        observation = self._convert(self._reset_env(self._take_seeds()))
        self._done = np.zeros(self._batch_size, bool)
        self._any_done = False
        return self._first(observation)

    def enter_phase(self, phase: str) -> None:
        """Tells the wrappers of environments that are stepped in a loop."""
        vector = self._env.unwrapped
        for env in vector.envs if isinstance(vector, SyncVectorEnv) else ():
            tell_phase(env, phase)

    def _reset_env(self, seeds: list[int] | None) -> Any:
        """Resets all rows, keeps the info and returns the raw observation."""
        if seeds is None or isinstance(self._env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)):
            # VectorEnv declares less than these take.
            observation, self._info = self._env.reset(seed=seeds)  # type: ignore[arg-type]
        else:
            observation, self._info = self._env.reset(seed=seeds[0])
        return observation

    def _raw_step(self, action: Any) -> RawStep:
        """observation, reward float32 [B] (a fresh array), terminated, truncated and either of them, bool [B]."""
        observation, reward, terminated, truncated, self._info = self._step_env(action)
        size = self._batch_size
        terminated, truncated = (np.asarray(flags, bool).reshape(size) for flags in (terminated, truncated))
        reward = np.array(reward, np.float32).reshape(size)
        return observation, reward, terminated, truncated, terminated | truncated

    def _step(self, action: Any) -> ts.TimeStep:
        first = self._done
        action = self._to_env(action)
        observation, reward, terminated, _, done = self._raw_step(action)
        if self._any_done and np.count_nonzero(done & first):
            observation, reward, terminated, _, done = self._reset_again(action, done, first)
        discount = (~terminated).astype(np.float32)
        step_type = done.astype(np.int32)
        step_type += 1
        if self._any_done:
            step_type[first] = 0
            reward[first] = 0
            discount[first] = 1
        self._done = done
        self._any_done = bool(np.count_nonzero(done))
        return ts.TimeStep(step_type, reward, discount, self._convert(observation))

    def _reset_again(self, action: Any, done: np.ndarray, first: np.ndarray) -> RawStep:
        """Steps over episodes that are over as soon as they begin; other rows cannot be held meanwhile."""
        for _ in range(_MAX_EMPTY_EPISODES):
            if not (done & first).all():
                break
            raw = self._raw_step(action)
            done = raw[-1]
            if not done.any():
                return raw
        rows = np.flatnonzero(done & first).tolist()
        raise RuntimeError(
            f"Rows {rows} were done as soon as they were reset (tried up to {_MAX_EMPTY_EPISODES} times): an episode "
            "needs at least one step, so make the environment's reset lead to a state that is not an end."
        )


def flag(end: Any) -> bool:
    """Whether an episode ends, as an environment has told it: a list of one that is false is no end."""
    return bool(np.reshape(end, ()) if isinstance(end, (list, tuple)) else end)


def earned(reward: Any) -> float:
    """A reward as an environment has told it, which may have axes of one, as a number."""
    return float(np.reshape(reward, ()))


def told_info(info: Any) -> dict[str, Any]:
    """Of a single environment's info what alf reads: "success", "is_success" and "lives", where each is one number.

    The rest, which may be anything, a vector environment would need of one kind and shape in all rows.

    Args:
      info: what a step or a reset gave.
    """
    told: dict[str, Any] = {}
    if not isinstance(info, Mapping) or _TOLD.keys().isdisjoint(info):
        return told
    for name, kind in _TOLD.items():
        # Something else may have this name.
        if name in info and (number := _number(info[name], kind)) is not None:
            told[name] = number
    return told


def _number(value: Any, kind: type) -> Any:
    """`value` as a bool or an int; None where it is not one number."""
    if type(value) is kind:
        return value
    try:
        array = np.asarray(value).reshape(())
        return None if array.dtype.kind not in "biuf" or np.isnan(array) else kind(array.item())
    except (TypeError, ValueError, OverflowError):
        return None


class ToldInfo(gymnasium.Wrapper):
    """Gives no more of the info than `told_info` does, and observations that are `spaces.fitting`."""

    def __init__(self, env: gymnasium.Env) -> None:
        """Wraps `env`."""
        super().__init__(env)
        self._fit = spaces.fitting(env.observation_space)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Resets the environment."""
        observation, info = self.env.reset(**kwargs)
        return self._fit(observation), told_info(info)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes a step."""
        step: Any = self.env.step(action)
        observation, reward, terminated, truncated, info = step
        if not _WITH_AXES.isdisjoint((type(reward), type(terminated), type(truncated))):
            # Numpy takes an array with axes of one for a number, but not for long any more.
            reward, terminated, truncated = (np.reshape(number, ()) for number in (reward, terminated, truncated))
        return self._fit(observation), reward, terminated, truncated, told_info(info)


def close_quietly(env: Any) -> None:
    """Closes an environment of any kind that has served; what it raises then is logged."""
    try:
        env.close()
    except (Exception, SystemExit) as error:
        logging.warning("%s did not close: %r", type(env).__name__, error)


def next_step_autoreset(env: VectorEnv) -> VectorEnv:
    """`env` in autoreset mode NEXT_STEP: itself, or the same environments in a new vector environment.

    Args:
      env: a vector environment that was not yet reset. An AsyncVectorEnv in another mode, or without shared memory, is
        closed and built anew.

    Raises:
      ValueError: neither Gymnasium's own SyncVectorEnv or AsyncVectorEnv, nor in mode NEXT_STEP; or an AsyncVectorEnv
        without shared memory in wrappers.
    """
    # SyncVectorEnv writes its mode into a dict that all environments of one class share: not to be trusted.
    mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    # Without shared memory Gymnasium's workers reset an environment once more after a reset behind an end.
    resets_again = isinstance(env.unwrapped, AsyncVectorEnv) and not env.unwrapped.shared_memory
    if resets_again and type(env) is not AsyncVectorEnv:
        raise ValueError(
            f"The AsyncVectorEnv of {type(env).__name__} shares no memory, and so would reset a row once more after a reset "
            "behind an end: leave shared_memory=False out."
        )
    if mode in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value) and not resets_again:
        return env
    if type(env) is SyncVectorEnv:
        env.autoreset_mode = env.metadata["autoreset_mode"] = AutoresetMode.NEXT_STEP
        return env
    if type(env) is AsyncVectorEnv:
        env.close()
        return AsyncVectorEnv(
            env.env_fns,
            shared_memory=True,
            copy=False,
            context=env.context,
            daemon=env.daemon,
            worker=env.worker,
            observation_mode=env.observation_mode,
            autoreset_mode=AutoresetMode.NEXT_STEP,
        )
    raise ValueError(
        f"{type(env).__name__} has autoreset mode {mode}, with which a row's last and next first observation cannot "
        "both be told: make it with autoreset_mode=AutoresetMode.NEXT_STEP, and say so in its "
        "metadata['autoreset_mode']."
    )


def one_picture(pictures: Any) -> np.ndarray | None:
    """The picture of the first row, out of what an environment, or a vector of some, has rendered.

    Raises:
      NotImplementedError: it renders nothing.
    """
    if pictures is None:
        raise NotImplementedError('No picture to render: make the environment with render_mode="rgb_array".')
    if isinstance(pictures, (tuple, list)):
        pictures = pictures[0]
    picture = np.asarray(pictures)
    return picture[0] if picture.ndim == 4 else picture  # of the first row
