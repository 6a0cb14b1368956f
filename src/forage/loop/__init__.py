"""The driver: it plans, counts and records, and leaves models to others."""
