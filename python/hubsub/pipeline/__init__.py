"""The data pipeline on Spark: hubs as tables and streams. Pure Python; needs neither the core nor the server's parts.

Pure are `options`, `schema`, `listing`, `selection`, `pushdown`, `packing`,
`admission` and `offsets`. `wire` and `records` talk HTTP, `source` and
`stream` are what Spark calls, `session` and `java` start Spark.

Jobs are frames in, frames out, without a session or I/O: `activity`, `sessions`,
`devices` and `replay`, on payloads as `events` reads them. `archive` writes and
reads tables of files, `union` joins one with the live log.
"""
