"""Makes the modules of this folder importable from every test below it.

Property tests are judged by what they compute, never by how long a busy machine takes for it.
"""

from hypothesis import settings

settings.register_profile("forage", deadline=None)
settings.load_profile("forage")
