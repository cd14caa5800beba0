"""The decision process beside the worker: no privileges, no state of its own."""
