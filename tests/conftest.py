"""Settings of all tests. Hypothesis has no deadline: how long an example takes is luck, on a machine that does other things too."""

from hypothesis import settings

settings.register_profile("chaffinch", deadline=None)
settings.load_profile("chaffinch")
