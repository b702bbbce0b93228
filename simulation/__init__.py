"""The cores that the processes run, in one seeded world: brokers that crash, a lossy network, producers and queries, and checkers.

Every failure replays from its seed: `python -m simulation SEED --verbose`. The cores know nothing of this package.

Where to look: `scenario` puts a world together and judges it, `report` says what came of it; `world` is its time and dice; `network`,
`disk` and `nemesis` are what goes wrong, `administrator` what people do to topics; `cluster`, `producers`, `consumers` and `queries` are
the shells around the cores, and `wakes` their timers; `version_2_producer` is another producer than ours; `programs` and `workload` say
what is written; `checkers` and `consumer_checkers` what must hold.
"""

from simulation.knobs import Knobs
from simulation.report import Report
from simulation.scenario import run

__all__ = ["Knobs", "Report", "run"]
