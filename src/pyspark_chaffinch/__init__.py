"""Registration of the format `chaffinch`: Spark looks for `DefaultSource` in every top-level module named `pyspark_*`.

Spark imports all such modules on first use of any format, so this one imports the PySpark data source module and little else.
"""

from chaffinch.spark.data_source import DefaultSource

__all__ = ["DefaultSource"]
