"""Trainers: a gang that turns batches of samples into the next policy."""
