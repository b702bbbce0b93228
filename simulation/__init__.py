"""Deterministic simulation of the cores in one seeded world: crashing brokers, a lossy network, producers, consumers, Spark queries,
checkers.

Every failure replays from its seed: `python -m simulation SEED --verbose`. The cores do not depend on this package.

Modules:
- `scenario` builds a world, runs it and applies the checkers; `report` is the result; `knobs` are its parameters.
- `world` holds virtual time and the random generator; `wake_timer` the deadlines of actors.
- `network`, `brokers/disk` and `nemesis` inject faults; `administrator` deletes, recreates and trims topics.
- `brokers`, `programs`, `consumers` and `queries` are the shells around the cores. `programs/version_2_producer` is a second, independent
  producer.
- `workload` generates records and rows, `programs/programs` the calls of users.
- `checkers` and `consumers/consumer_checkers` hold the properties that must be true of every world.
"""

from simulation.knobs import Knobs
from simulation.report import Report
from simulation.scenario import run

__all__ = ["Knobs", "Report", "run"]
