-- KEYS: ids. ARGV: start, limit of ids, limit of bytes, prefix of session keys.
-- Returns ids and snapshots, alternating.
local page, bytes, from = {}, 0, ARGV[1]
local max, bytes_max = tonumber(ARGV[2]), tonumber(ARGV[3])
while #page < 2 * max do
  local ids = redis.call('ZRANGEBYLEX', KEYS[1], from, '+', 'LIMIT', 0, math.min(max - #page / 2, 100))
  if #ids == 0 then
    return page
  end
  for _, id in ipairs(ids) do
    local snapshot = redis.call('HGET', ARGV[4] .. id, 'snapshot')
    from = '(' .. id
    if snapshot then
      page[#page + 1] = id
      page[#page + 1] = snapshot
      bytes = bytes + #id + #snapshot
      if bytes >= bytes_max then
        return page
      end
    end
  end
end
return page
