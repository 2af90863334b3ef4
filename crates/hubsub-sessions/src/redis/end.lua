-- KEYS: ids, session, entries. ARGV: id.
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('ZREM', KEYS[1], ARGV[1])
return 'ended'
