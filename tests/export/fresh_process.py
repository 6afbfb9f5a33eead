"""Runs exported models with TensorFlow alone; started as `python -I fresh_process.py JOB.json`.

For every model, plays the observations of its inputs.npz by each signature, and writes what comes out to outputs.npz.
"""

import importlib.abc
import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


class Blocked(importlib.abc.MetaPathFinder):
    """Makes packages look as if they were not installed."""

    packages = ("alf", "tf_agents", "tensorflow_probability", "gin", "gymnasium")

    def find_spec(self, fullname, path=None, target=None):
        """Refuses the packages."""
        if fullname.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


sys.meta_path.insert(0, Blocked())
for package in ("alf", "tf_agents"):
    try:
        __import__(package)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{package} can be imported")


def main():
    """Plays the models of the job."""
    import numpy as np
    import tensorflow as tf

    def play(model, name, inputs):
        """Outputs of each step of a signature, which gets back the state that it returned."""
        signature = model.signatures[name]
        takes = signature.structured_input_signature[1]
        steps, batch_size = inputs["step_type"].shape
        state = {}
        if "get_initial_state" in model.signatures:
            state = model.signatures["get_initial_state"](batch_size=tf.constant(batch_size))
        outputs = []
        for t in range(steps):
            given = {key: state[key] if key in state else tf.constant(inputs[key][t]) for key in takes}
            step = signature(**given)
            state = {key: step.get(key, value) for key, value in state.items()}
            outputs.append(step)
        return {f"{name}/{key}": np.stack([o[key].numpy() for o in outputs]) for key in outputs[0]}

    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    for directory in job["models"]:
        model = tf.saved_model.load(os.path.join(directory, "saved_model"))
        inputs = dict(np.load(os.path.join(directory, "inputs.npz")))
        outputs = {}
        for name in job["signatures"]:
            outputs.update(play(model, name, inputs))
        np.savez(os.path.join(directory, "outputs.npz"), **outputs)
        # What metadata.json tells people to write must work as it stands, given values for what it leaves open.
        with open(os.path.join(directory, "metadata.json"), encoding="utf-8") as file:
            usage = "\n".join(json.load(file)["usage"])
        for key in inputs:
            usage = usage.replace(f"{key}=...", f"{key}=tf.constant(inputs[{key!r}][0])")
        os.chdir(directory)
        scope = {"inputs": inputs, "B": inputs["step_type"].shape[1]}
        exec(usage, scope)
        np.testing.assert_array_equal(
            scope["outputs"][job["action"][directory]], outputs[f"action/{job['action'][directory]}"][0]
        )
    left = [name for name in sys.modules if name.partition(".")[0] in Blocked.packages]
    sys.exit(f"imported: {left}" if left else 0)


main()
