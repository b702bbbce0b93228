"""A query killed with SIGKILL at a named step, in a process of its own, and restarted from its checkpoint."""

import os
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chaffinch.spark.operations import Step
from chaffinch.spark.pause import FILE_VARIABLE, STEP_VARIABLE
from tests.spark.test_spark_write import Stream, values

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore::ResourceWarning")]

SCRIPT = Path(__file__).with_name("killed_query.py")
ROOT = Path(__file__).parents[2]
WAIT_S = 120


def run_until_killed(folder, broker, topic, dead, step, batch_id):
    """Starts the query, kills its process group when it stands at the step, and returns what the pause said."""
    fifo = folder / "pause"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    environment = {**os.environ, STEP_VARIABLE: f"{step.value}@{batch_id}", FILE_VARIABLE: str(fifo)}
    command = [sys.executable, str(SCRIPT), str(folder), broker.bootstrap_servers, topic, dead]
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        ready, _, _ = select.select([reading], [], [], WAIT_S)
        said = os.read(reading, 100).decode() if ready else (folder / "output").read_text()[-3000:]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(reading)
    return said


@pytest.mark.parametrize("step", [Step.END_TRANSACTION, Step.PUSH])
def test_each_row_is_in_one_place_once(spark, broker, topic, dead, tmp_path, step):
    """After Kafka's commit and before Spark's own, and in the middle of the push."""
    stream = Stream(
        spark, broker, topic, tmp_path, errors__tolerance="all",
        errors__dead__letter__queue__topic__name=dead, errors__dead__letter__path=str(tmp_path / "dead"),
    )  # fmt: skip
    for number in range(3):
        stream.add(number, [(f"k{number}", f"good {number}"), (None, f"keyless {number}")])
    assert run_until_killed(tmp_path, broker, topic, dead, step, 1) == f"{step.value}@1\n"
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    stream.run()
    assert values(broker, topic) == {f"good {number}": 1 for number in range(3)}
    assert values(broker, dead) == {f"keyless {number}": 1 for number in range(3)}
    assert Counter(row["batch"] for row in spark.read.parquet(str(tmp_path / "dead")).collect()) == {0: 1, 1: 1, 2: 1}
