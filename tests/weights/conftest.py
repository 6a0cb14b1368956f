"""Examples are judged by what they compute, never by how long a busy machine takes for them."""

from hypothesis import settings

settings.register_profile("weights", deadline=None)
settings.load_profile("weights")
