-- Release and claim in one step. refused.lua, note.lua, stand.lua and serve.lua stand before this, claim.lua and refuse.lua behind it: if the token
-- does not hold the lock, this is the heir's claim and nothing else. To itself: it keeps the lock unless somebody in line came before it.
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] its line   KEYS[4] a quorum's node: its roll
-- ARGV[1..8] the heir's claim, with a place: see claim.lua
-- ARGV[9] the token   ARGV[10] serve those in line who arrived before this   ARGV[11] how the token may stand in line, or ''
-- then, on a quorum's node, a hash of the list of its nodes; then the mark
-- replies {2, fence, 1 if it was not allowed to serve those in line, else 0, mark} to the heir
--         | {3, ms, public facts, clock or 0, the counter, mark} to somebody else, by a quorum's node with a hash as in refuse.lua
--         | those of claim.lua
if redis.call('GET', KEYS[1]) == ARGV[9] then
  local heir, ttl, idle, epoch, mark = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[#ARGV]
  local before, proposal = tonumber(ARGV[10]), tonumber(ARGV[5])
  if not enrolled() then
    if hindered then return hindered end
    redis.call('DEL', KEYS[1])
    return {-1, mark}
  end
  local own, fence, to_itself = '', nil, heir == ARGV[9]
  if to_itself then
    own = ARGV[6]
    try('TIME') -- claim.lua needs this afterwards, and the next
    if KEYS[4] then hindered = hindered or index(KEYS[4], KEYS[1], ttl) end
  else
    fence = mint(ttl, idle, epoch, proposal)
    if hindered then return hindered end
    if not fence then return redis.error_reply('INTERLOCK the fence counter is not a number that can grow') end
    noting(ttl, fence)
  end
  if noted and ARGV[7] ~= '' then hindered = hindered or note_place(KEYS[4], tonumber(noted[3]), KEYS[3], ARGV[6]) end
  if hindered then return hindered end
  if ARGV[8] == '1' then -- or it might be served in its own absence
    try('ZREM', KEYS[3], ARGV[6])
    if hindered then return hindered end
  end
  local token, left, minted = nil, nil, fence
  -- Usually it stands in line first, where it would stand afterwards: then nobody has to look who is before it.
  local stands = before > 0 and not to_itself and not KEYS[4] and ARGV[7] == ARGV[10] and ARGV[6]
  if stands then
    local added = join(KEYS[3], stands, ARGV[7])
    if refused(added) then return added end
  end
  if before > 0 then token, left, minted = serve(before, own, fence, idle, epoch, proposal, stands) end
  if token then
    if not stands then
      if ARGV[7] ~= '' then stand(KEYS[3], ARGV[6], ARGV[7], left, idle) end
    elseif 2 * left > idle or fence % 64 == 0 then -- else whoever was served stood there, and saw to it
      redis.pcall('PEXPIRE', KEYS[3], string.format('%.0f', math.max(idle, 2 * left)))
    end
    local owner, counter = '', string.format('%.0f', minted)
    if string.sub(token, 33, 33) == '~' then owner = string.sub(token, 34) end -- the first 32 are its secret
    if KEYS[4] then return {3, left, owner, now(), redis.sha1hex(token), counter, mark} end
    return {3, left, owner, now(), counter, mark}
  end
  redis.call('SET', KEYS[1], heir, 'PX', ARGV[2]) -- somebody who could not be told may have had it for a moment
  if not to_itself then return {2, fence, hindered and 1 or 0, mark} end
elseif ARGV[11] ~= '' and ARGV[11] ~= ARGV[6] then
  local left = redis.pcall('ZREM', KEYS[3], ARGV[11])
  if refused(left) then return left end
end
