"""The data pipeline on Spark: hubs as tables and streams. Pure Python; needs neither the core nor the server's parts.

Pure are `options`, `schema`, `listing`, `selection`, `pushdown`, `packing`,
`admission` and `offsets`. `wire` and `records` talk HTTP, `source` and
`stream` are what Spark calls, `session` and `java` start Spark.
"""
