"""Environments, all behind one batched interface."""

from alf.environments import suite_agents as suite_agents
from alf.environments import suite_mlagents as suite_mlagents
from alf.environments import suite_mujoco as suite_mujoco
from alf.environments import suite_pettingzoo as suite_pettingzoo
from alf.environments import wrappers as wrappers
from alf.environments.batched_environment import BatchedEnvironment as BatchedEnvironment
from alf.environments.crash_isolation import RestartingEnvironment as RestartingEnvironment
from alf.environments.envpool_environment import EnvPoolEnvironment as EnvPoolEnvironment
from alf.environments.gymnasium_environment import SingleEnvironment as SingleEnvironment
from alf.environments.gymnasium_environment import VectorEnvironment as VectorEnvironment
from alf.environments.process_environment import ProcessEnvironment as ProcessEnvironment
from alf.environments.seeding import spawn_environment_seeds as spawn_environment_seeds
from alf.environments.suite_atari import AleVectorEnvironment as AleVectorEnvironment
from alf.environments.utils import create_environment as create_environment
from alf.environments.vectorization import EnvironmentLoader as EnvironmentLoader
