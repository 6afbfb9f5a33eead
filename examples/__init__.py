"""The shipped examples; installed as the package `alf.examples`, so that gin files are found by name."""
