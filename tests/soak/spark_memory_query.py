"""One large micro-batch in a process of its own: `python -m tests.soak.spark_memory_query PLAN`, a JSON object.

Spark makes the rows: their ids lie in Parquet files, the query makes the values. When it has ended, the process says `written` and stays
until its standard input ends, so that all its workers can be looked at.
"""

from __future__ import annotations

import json
import sys

from chaffinch.spark import session


def main() -> None:
    plan = json.loads(sys.argv[1])
    spark = session("memory", master=plan["master"], config=plan["config"])
    spark.range(plan["rows"]).write.parquet(plan["input"])
    frame = spark.readStream.schema("id long").parquet(plan["input"])
    rows = frame.selectExpr("cast(id as string) as key", f"rpad(cast(id as string), {plan['value_bytes']}, '.') as value")
    writer = rows.writeStream.format("chaffinch").options(**plan["options"]).option("checkpointLocation", plan["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()
    print("written", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
