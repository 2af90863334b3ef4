-- KEYS: ids, session, entries. ARGV: id, snapshot, through.
local head = redis.call('HMGET', KEYS[2], 'last', 'bytes')
local last, bytes = tonumber(head[1] or 0), tonumber(head[2] or 0)
local count = redis.call('LLEN', KEYS[3])
if not head[1] and count > 0 then
  -- What the server kept of a session that it forgot is not of this one. (A server without memory refuses a script only
  -- up to its first change, so there is none before it has to be.)
  redis.call('DEL', KEYS[3])
  count = 0
end
local through = tonumber(ARGV[3])
local gone = math.min(through - (last - count), count)
if gone > 0 then
  for _, entry in ipairs(redis.call('LRANGE', KEYS[3], 0, gone - 1)) do
    bytes = bytes - #entry
  end
  redis.call('LTRIM', KEYS[3], gone, -1)
end
last = string.format('%.0f', math.max(last, through))
redis.call('HSET', KEYS[2], 'snapshot', ARGV[2], 'last', last, 'bytes', string.format('%.0f', bytes))
redis.call('ZADD', KEYS[1], 0, ARGV[1])
return 'saved'
