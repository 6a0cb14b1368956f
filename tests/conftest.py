"""Makes the modules of this folder importable from every test below it.

Property tests are judged by what they compute, never by how long a busy machine takes for it. In
CI they try the same examples every time; elsewhere they go on looking for new ones.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("forage", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("forage")

# A shell's background job ignores interrupts, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
