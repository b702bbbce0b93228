"""Makes the format `chaffinch` known to Spark by name: it looks for `DefaultSource` in every top-level module named `pyspark_*`.

Spark imports all such modules at the first use of any format, so this one imports PySpark's own module and little else.
"""

from chaffinch.spark.data_source import DefaultSource

__all__ = ["DefaultSource"]
