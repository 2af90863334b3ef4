-- KEYS: ids, session, entries.
-- Returns the snapshot, the number of the last entry, and the entries; nothing without a session.
local head = redis.call('HMGET', KEYS[2], 'snapshot', 'last')
if not head[2] then
  return {}
end
return {head[1], tonumber(head[2]), redis.call('LRANGE', KEYS[3], 0, -1)}
