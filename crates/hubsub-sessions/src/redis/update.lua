-- KEYS: ids, session, entries. ARGV: snapshot, number of the last entry, through.
-- Returns nothing if the session does not exist; or the number of the last entry if it differs.
local head = redis.call('HMGET', KEYS[2], 'last', 'bytes')
if not head[1] then
  return {}
end
local last, bytes, through = tonumber(head[1]), tonumber(head[2]), tonumber(ARGV[3])
if last ~= tonumber(ARGV[2]) then
  return {last}
end
local count = redis.call('LLEN', KEYS[3])
local gone = math.min(through - (last - count), count)
if gone > 0 then
  for _, entry in ipairs(redis.call('LRANGE', KEYS[3], 0, gone - 1)) do
    bytes = bytes - #entry
  end
  redis.call('LTRIM', KEYS[3], gone, -1)
end
redis.call('HSET', KEYS[2], 'snapshot', ARGV[1], 'bytes', string.format('%.0f', bytes))
return 'saved'
