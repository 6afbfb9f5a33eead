"""An asynchronous actor-learner training service for reinforcement learning on TensorFlow."""

from alf import _tf as _tf

__version__ = "0.1.0"
