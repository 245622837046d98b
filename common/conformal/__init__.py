"""Conformal prediction: sets of labels with a guaranteed coverage."""
