"""Conformal prediction: sets of labels with a promised coverage."""
