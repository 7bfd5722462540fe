-- One check of fixed-window policies, all or nothing.
--
-- KEYS   one counter for each policy of the check
-- ARGV   five for each key: limit, window in ms, block in ms (0: none), cost
--        (0: charges nothing, refused when 1 would be), enforced (1 or 0)
-- Reply  two integers for each key, the state BEFORE the check: the count, or
--        -1 for a block, and the milliseconds left. 0, 0 when nothing runs.
-- Time   the server's, as PTTL tells it
-- Expiry every key that is left behind has one: set with the value, or healed
-- Atomic because check and charge are one script: two clients cannot both see
--        the last place free, and a dropped client cannot leave half of it
--
-- A counter is a plain integer, so that INCR and PEXPIRE of another program
-- work on it. A block is the value below, to such a program simply "over".

local BLOCK = '9100000000000000000'
local MAX_EXACT = 9007199254740991

-- The count of a value that a counter can have, or nil.
local function counted(value)
  if type(value) ~= 'string' or #value > 19 then return nil end
  if value ~= '0' and not string.find(value, '^[1-9]%d*$') then return nil end
  return tonumber(value)
end

local before, reply = {}, {}
local admitted, too_large = true, false

for i = 1, #KEYS do
  local key, at = KEYS[i], 5 * (i - 1)
  local limit, window, block = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local cost, enforced = tonumber(ARGV[at + 4]), ARGV[at + 5] == '1'

  local count, left, blocked = 0, 0, false
  local value = redis.pcall('GET', key)
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    -- A user that may not read. Taken for a foreign value, nothing would ever
    -- be counted.
    return value
  end
  if value then
    count = counted(value)
    left = count and redis.call('PTTL', key) or 0
    if not count then
      -- Somebody else's value, of any type. It is not trusted.
      redis.call('DEL', key)
    end
    blocked = count ~= nil and count >= tonumber(BLOCK)
    if left == -1 or (left > window and not blocked) then
      left = window
      if blocked and block > 0 then left = block end
      redis.call('PEXPIRE', key, string.format('%.0f', left))
    end
    if left <= 0 then
      -- A key with no time left has ended, even where it can still be read.
      count, left, blocked = 0, 0, false
    end
    if count > MAX_EXACT then count = MAX_EXACT end
  end

  local verdict = 'admit'
  if limit == 0 then
    verdict = 'limit'
  elseif cost > limit then
    verdict = 'too large'
  elseif blocked then
    verdict = 'blocked'
  elseif math.max(cost, 1) > limit - count then
    verdict = 'limit'
  end
  if enforced and verdict ~= 'admit' then admitted = false end
  if enforced and verdict == 'too large' then too_large = true end

  before[i] = { verdict = verdict, left = left, block = block > 0 and limit > 0 and cost > 0 }
  reply[2 * i - 1] = blocked and -1 or count
  reply[2 * i] = left
end

for i = 1, #KEYS do
  local key, at = KEYS[i], 5 * (i - 1)
  local verdict = before[i].verdict
  if verdict == 'admit' and admitted and ARGV[at + 4] ~= '0' then
    if before[i].left > 0 then
      redis.call('INCRBY', key, ARGV[at + 4])
    else
      redis.call('SET', key, ARGV[at + 4], 'PX', ARGV[at + 2])
    end
  elseif verdict == 'limit' and not too_large and before[i].block then
    redis.call('SET', key, BLOCK, 'PX', ARGV[at + 3])
  end
end

return reply
