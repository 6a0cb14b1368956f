"""Questions, their held-out split and the passages to search, from the files people have."""

from forage.agent.data.load import DataFacts, describe, load_dataset

__all__ = ["DataFacts", "describe", "load_dataset"]
