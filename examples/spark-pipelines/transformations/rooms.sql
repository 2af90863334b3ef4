-- Made anew from chat_events by each run.
CREATE MATERIALIZED VIEW rooms COMMENT 'Each room: how much was said, by how many, until when.' AS
SELECT
  room,
  count_if(kind IN ('message', 'action')) AS messages,
  count(DISTINCT user) AS people,
  max(event_time) AS last_event
FROM chat_events
GROUP BY room;

CREATE MATERIALIZED VIEW hours COMMENT 'Each hour: messages, rooms and people.' AS
SELECT
  date_trunc('HOUR', event_time) AS hour,
  count_if(kind IN ('message', 'action')) AS messages,
  count(DISTINCT room) AS rooms,
  count(DISTINCT user) AS people
FROM chat_events
GROUP BY ALL;
