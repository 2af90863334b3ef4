-- KEYS: ids, session, entries. ARGV: id, snapshot, through, entries.
-- (A server without memory refuses a script only before its first write, so no write comes before it must.)
local bytes = 0
for at = 4, #ARGV do
  bytes = bytes + #ARGV[at]
end
local last = string.format('%.0f', tonumber(ARGV[3]) + #ARGV - 3)
redis.call('HSET', KEYS[2], 'snapshot', ARGV[2], 'last', last, 'bytes', string.format('%.0f', bytes))
redis.call('DEL', KEYS[3])
for at = 4, #ARGV do
  redis.call('RPUSH', KEYS[3], ARGV[at])
end
redis.call('ZADD', KEYS[1], 0, ARGV[1])
return 'saved'
