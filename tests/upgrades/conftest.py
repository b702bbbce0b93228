"""One Spark session for these tests, as for the others that need one."""

from tests.spark.conftest import spark as spark
