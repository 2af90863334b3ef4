-- The latest report of each device, and for how much of its time it was in which state:
-- spark-sql -f examples/devices.sql
SET spark.sql.session.timeZone = UTC;
SET spark.sql.cli.print.header = true;

CREATE TEMPORARY VIEW records
USING hubsub
OPTIONS (servers '127.0.0.1:3220', subscribePattern 'devices/+');

CREATE TEMPORARY VIEW reports AS
SELECT
  room,
  seq,
  from_json(
    CAST(payload AS STRING),
    'device STRING, ts TIMESTAMP, state STRING, temperature DOUBLE, target DOUBLE, battery DOUBLE'
  ) AS report
FROM records;

SELECT
  report.device,
  count(*) AS reports,
  round(100 * count_if(report.state = 'heating') / count(*), 1) AS heating_percent,
  round(100 * count_if(report.state = 'fault') / count(*), 1) AS fault_percent,
  max_by(report.state, seq) AS state,
  max_by(report.temperature, seq) AS temperature,
  max_by(report.battery, seq) AS battery,
  max(report.ts) AS reported
FROM reports
GROUP BY report.device
ORDER BY fault_percent DESC, device;
