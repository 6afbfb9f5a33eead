"""Experience replayers: what the learner trains on, by name."""
