"""The search agent: its protocol, prompts, retrieval, data and rewards; no model library in it."""
