-- KEYS: ids, session, entries. The snapshot, the number of the last entry, entries; nothing of nobody.
local head = redis.call('HMGET', KEYS[2], 'snapshot', 'last')
if not head[2] then
  return {}
end
return {head[1], tonumber(head[2]), redis.call('LRANGE', KEYS[3], 0, -1)}
