"""Runs the jobs: what `hubsub pipeline NAME` and `python -m hubsub.pipeline.NAME` do around the transforms.

Pure are `settings` (what was asked for), `tally` (what Spark's progress means) and `failures` (its errors as ours).
`lineage` keeps a checkpoint and its results together, `results` is the table of a job, `jobs` joins source,
transform and table, `runner` starts and ends queries, `display` and `plot` show.
"""
