-- Release and claim in one step. stand.lua and serve.lua stand before this, claim.lua and refuse.lua behind it: if the token does not hold
-- the lock, this is the heir's claim and nothing else. To itself: it keeps the lock unless somebody in line came before it.
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] its line   KEYS[4] a quorum's node: its roll
-- ARGV[1..8] the heir's claim, with a place: see claim.lua
-- ARGV[9] the token   ARGV[10] serve those in line who arrived before this   ARGV[11] a time that the server's clock has reached
-- ARGV[12] how the token may stand in line, or ''
-- replies {2, fence, clock or 0, mark} to the heir | {3, ms, public facts, clock, mark} to somebody else | those of claim.lua
if redis.call('GET', KEYS[1]) == ARGV[9] then
  local heir, ttl, idle, epoch, mark = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[#ARGV]
  local before, at, proposal = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[5])
  if not enrolled() then
    redis.call('DEL', KEYS[1])
    return {-1, mark}
  end
  local own, fence, to_itself = '', nil, heir == ARGV[9]
  if to_itself then own = ARGV[6]
  else
    fence = mint(ttl, idle, epoch, proposal)
    if not fence then return redis.error_reply('INTERLOCK the fence counter is not a number that can grow') end
  end
  if ARGV[8] == '1' then redis.pcall('ZREM', KEYS[3], ARGV[6]) end -- or it might be served in its own absence
  local token, left, minted = nil, nil, fence
  -- Usually it stands in line first, where it would stand afterwards: then nobody has to look who is before it.
  local stands = before > 0 and not to_itself and not KEYS[4] and ARGV[7] == ARGV[10] and ARGV[6]
  if stands then join(KEYS[3], stands, ARGV[7]) end
  if before > 0 then token, left, minted = serve(before, own, fence, at, idle, epoch, proposal, stands) end
  if token then
    if not stands then
      if ARGV[7] ~= '' then stand(KEYS[3], ARGV[6], ARGV[7], left, idle) end
    elseif 2 * left > idle or fence % 64 == 0 then -- else whoever was served stood there, and saw to it
      redis.call('PEXPIRE', KEYS[3], string.format('%.0f', math.max(idle, 2 * left)))
    end
    local owner = ''
    if string.sub(token, 33, 33) == '~' then owner = string.sub(token, 34) end -- the first 32 are its secret
    if KEYS[4] then return {3, left, owner, now(), redis.sha1hex(token), string.format('%.0f', minted), mark} end
    return {3, left, owner, now(), mark}
  end
  if not to_itself then
    redis.call('SET', KEYS[1], heir, 'PX', ARGV[2])
    note(ttl, fence)
    return {2, fence, clock, mark}
  end
elseif ARGV[12] ~= '' and ARGV[12] ~= ARGV[6] then
  redis.pcall('ZREM', KEYS[3], ARGV[12])
end
