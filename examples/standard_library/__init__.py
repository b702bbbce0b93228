"""End-to-end demo: writes the files of the standard library through Spark to Kafka, exactly once."""
