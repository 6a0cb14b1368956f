"""Rollouts: the policy answers questions, searching as it goes."""
