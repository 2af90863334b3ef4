"""Runs the jobs: implements `hubsub pipeline NAME` and `python -m hubsub.pipeline.NAME` around the transforms.

Pure are `settings` (the arguments), `tally` (Spark's progress) and `failures` (its errors as ours). `lineage`
ties a checkpoint to its results, `results` is the table of a job, `jobs` joins source, transform and table,
`runner` starts and ends queries, `display` and `plot` show.
"""
