"""The main job on real input: the files of the standard library, through Spark, into Kafka, exactly once."""
