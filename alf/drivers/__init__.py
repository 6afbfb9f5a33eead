"""Drivers: who moves data between environments, actors and the learner."""
