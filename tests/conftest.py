"""Settings of all tests. Hypothesis looks at no clock: how long an example takes, or to think of it, is luck, on a machine that does other
things too.

A shell has what runs in its background ignore Ctrl-C, and so would all that the tests start and interrupt.

Each Spark of the tests lives for seconds or minutes: optimising its Java thoroughly takes half of its processor time and never pays.
"""

import os
import signal

from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

settings.register_profile("chaffinch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chaffinch")
