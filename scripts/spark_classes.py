"""Writes an archive of Spark's loaded Java classes, so that Spark in tests starts sooner.

Argument: the file. It is valid for this Java and this Spark; others ignore it.
"""

import os
import sys

from hubsub.pipeline.session import connect

part = f"{sys.argv[1]}.part"
options = f"-Xss32m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={part}"
spark = connect("local[2]", {"spark.driver.defaultJavaOptions": options, "spark.log.level": "OFF"})
spark.range(100).selectExpr("id % 3 AS k").groupBy("k").count().collect()
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()  # Its end ends it.
java.wait(300)
os.replace(part, sys.argv[1])
