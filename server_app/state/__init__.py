"""The state of the server: the options of a run, the value that a checkpoint holds, the model."""
