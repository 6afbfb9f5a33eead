"""What an environment is used for, told to those of its Gymnasium wrappers that ask."""

from __future__ import annotations

import gymnasium


class PhasedWrapper(gymnasium.Wrapper):
    """A Gymnasium wrapper that is told what its environment is used for."""

    def enter_phase(self, phase: str) -> None:
        """Called before the next step or reset; see `BatchedEnvironment.enter_phase`."""

    def tell_phases(self, phase: str) -> None:
        """Tells this wrapper and the phased ones below it: the main process can reach the outermost one only."""
        tell_phase(self, phase)


def tell_phase(env: gymnasium.Env, phase: str) -> None:
    """Tells the phased ones among the wrappers of an environment."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, PhasedWrapper):
            env.enter_phase(phase)
        env = env.env
