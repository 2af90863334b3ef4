-- KEYS: ids, session, entries. ARGV: entry, limit of entries, limit of bytes.
-- Returns the entry's number; nothing without a session; or count and bytes if a limit is reached.
local head = redis.call('HMGET', KEYS[2], 'last', 'bytes')
if not head[1] then
  return {}
end
local count, bytes = redis.call('LLEN', KEYS[3]), tonumber(head[2])
if count >= tonumber(ARGV[2]) or bytes + #ARGV[1] > tonumber(ARGV[3]) then
  return {count, bytes}
end
redis.call('RPUSH', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[2], 'bytes', string.format('%.0f', bytes + #ARGV[1]))
return {redis.call('HINCRBY', KEYS[2], 'last', 1)}
