"""The data pipeline on Spark: hubs as tables and streams. Pure Python; needs neither the core nor the server's parts.

`options`, `schema`, `listing`, `selection`, `pushdown`, `packing`, `admission` and `offsets` are pure. `wire`
and `records` use HTTP, Spark calls `source` and `stream`, and `session` and `java` start Spark.

The jobs `activity`, `sessions`, `devices` and `replay` are functions from frames to frames, without a session
or I/O, on payloads as `events` reads them. `archive` writes and reads tables of files, `union` joins one with
the live log.
"""
