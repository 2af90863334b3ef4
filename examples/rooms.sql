-- The busiest rooms, and what was said last in each: spark-sql -f examples/rooms.sql
SET spark.sql.session.timeZone = UTC;
SET spark.sql.cli.print.header = true;

CREATE TEMPORARY VIEW records
USING hubsub
OPTIONS (servers '127.0.0.1:3220', subscribePattern 'chat:*');

CREATE TEMPORARY VIEW chat AS
SELECT
  room,
  seq,
  get_json_object(CAST(payload AS STRING), '$.user') AS user,
  get_json_object(CAST(payload AS STRING), '$.kind') AS kind,
  get_json_object(CAST(payload AS STRING), '$.text') AS text,
  CAST(get_json_object(CAST(payload AS STRING), '$.ts') AS TIMESTAMP) AS at
FROM records;

SELECT
  room,
  count(*) AS events,
  count_if(kind IN ('message', 'action')) AS messages,
  count(DISTINCT user) AS people,
  max_by(text, seq) FILTER (WHERE kind IN ('message', 'action')) AS last_said
FROM chat
GROUP BY room
ORDER BY events DESC, room
LIMIT 10;
