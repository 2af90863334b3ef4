-- KEYS: ids, session, entries. ARGV: id, beginning of its snapshot.
local snapshot = redis.call('HGET', KEYS[2], 'snapshot')
if snapshot and string.sub(snapshot, 1, #ARGV[2]) ~= ARGV[2] then
  return 'another'
end
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('ZREM', KEYS[1], ARGV[1])
return 'ended'
