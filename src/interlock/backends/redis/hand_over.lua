-- Release and claim in one step. stand.lua and serve.lua stand before this and claim.lua behind it: if the token does not hold
-- the lock, this is the heir's claim and nothing else.
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] its line   ARGV[1..8] the heir's claim, with a place: see claim.lua
-- ARGV[9] the token   ARGV[10] serve those in line who arrived before this   ARGV[11] a time that the server's clock has reached
-- replies {2, fence, clock or 0, mark} to the heir | {3, ms, public facts, clock, mark} to somebody else | those of claim.lua
if redis.call('GET', KEYS[1]) == ARGV[9] then
  local heir, ttl, idle, epoch, mark = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[#ARGV]
  local fence = mint(ttl, idle, epoch)
  if not fence then return redis.error_reply('INTERLOCK the fence counter is not a number that can grow') end
  if ARGV[8] == '1' then redis.pcall('ZREM', KEYS[3], ARGV[6]) end -- or it might be served in its own absence
  local before, token, left = tonumber(ARGV[10]), nil, nil
  if before > 0 then token, left = serve(before, fence, tonumber(ARGV[11]), idle, epoch) end
  if token then
    if ARGV[7] ~= '' then stand(KEYS[3], ARGV[6], ARGV[7], left, idle) end
    local owner = ''
    if string.sub(token, 33, 33) == '~' then owner = string.sub(token, 34) end -- the first 32 are its secret
    return {3, left, owner, now(), mark}
  end
  redis.call('SET', KEYS[1], heir, 'PX', ARGV[2])
  return {2, fence, clock, mark}
end
