"""The engine that runs executors on a Ray cluster; nothing of Ray is seen outside of it."""
