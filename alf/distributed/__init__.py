"""Rollout workers beyond the learner's process: the engines that run them, and what goes between them and the learner."""
