-- One check of any policies, all or nothing; in front of it, what a replica has
-- counted by itself while it could not ask; and what is told after a response.
--
-- KEYS   one counter for each policy of the check, then the markers of debts
--        and the sets of open reservations, by their position below
-- ARGV   the number of counters, and of debts; then, for each counter
--          two or three letters: the algorithm (f, s, b); c for a charge, r to
--          reserve, s to settle, u to give back; o if reservations are kept; p
--          if blocks are lifted
--          limit (a bucket's burst), window in ms, block in ms (0: none), cost
--          (0: charges nothing, refused when 1 would be), enforced (1 or 0)
--          b: how many tokens come back in each window
--          o: the position of the set of open reservations
--          r: the name of the reservation, and for how many ms it is held
--          s, with o: the name of the reservation that is over
--          u: the ms that the charged window had left
--          p: a block with fewer ms left is over: it was started by a stricter
--          rule, which has been replaced
--        and for each debt: the position of its counter, that of its marker (0:
--        none), the floor (what this server has told of the window, and charges
--        of unknown outcome) of this and of the previous sub-window, the delta
--        (charges that surely never came here) of both, its moment (see the
--        algorithms; of a block its end) on this server's clock, blocked (1 or 0)
-- Reply  four integers for each counter, the state BEFORE the check: the two
--        counts (-1, 0 for a block), the milliseconds left, and what open
--        reservations hold
-- Time   the server's, read once
-- Expiry every key that is left behind has one: set with the value, or healed
-- Atomic because check and charge are one script: two clients cannot both see
--        the last place free, and a dropped client cannot leave half of it. A
--        marker is set with the delta that it marks, so nothing is added twice
--        however often it is sent
--
-- Reservations are a sorted set of `name=amount` by the moment of their lapse.

local position = 0
local function take()
  position = position + 1
  return ARGV[position]
end
local function number() return tonumber(take()) end

-- What a key holds. Or nothing, and the error of a user that may not read:
-- taken for a foreign value, nothing would ever be counted.
local function read(rule, key)
  local state = { left = 0, runs = false, blocked = false }
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    if not string.find(value.err, 'WRONGTYPE', 1, true) then return nil, value end
    redis.call('DEL', key)
    value = false
  end
  local ttl = value and redis.call('PTTL', key) or 0
  -- A key with no time left has ended, even where it can still be read.
  if ttl == 0 or ttl == -2 then value = false end
  local count = value and counted(value)
  if count and count >= tonumber(BLOCK) then
    state.blocked, state.runs, state.left = true, true, ttl
    state.current, state.previous = 0, 0
    return state
  end
  if value and rule.letter == 'f' then state.left = ttl end
  if not rule.algorithm.read(rule, state, value) then
    -- Somebody else's value. It is not trusted.
    redis.call('DEL', key)
    value, state.left = false, 0
    rule.algorithm.read(rule, state, false)
  end
  state.runs = value and true or false
  state.lasts = state.runs and ttl == -1
  return state
end

-- What open reservations hold. Those that have lapsed hold nothing.
local function held(key)
  local members = redis.pcall('ZRANGEBYSCORE', key, '(' .. text(now()), '+inf')
  if members.err then
    if not string.find(members.err, 'WRONGTYPE', 1, true) then return nil, members end
    redis.call('DEL', key)
    return 0
  end
  local sum = 0
  for _, member in ipairs(members) do
    sum = sum + (tonumber(string.match(member, '=(%d+)$')) or 0)
  end
  return math.min(sum, MAX_EXACT)
end

local counters, debts = number(), number()
local rules = {}
for i = 1, counters do
  local form = take()
  local rule = { key = KEYS[i], letter = string.sub(form, 1, 1), act = string.sub(form, 2, 2) }
  rule.algorithm = algorithms[rule.letter]
  rule.limit, rule.window, rule.block = number(), number(), number()
  rule.cost, rule.enforced = number(), take() == '1'
  if rule.letter == 'b' then rule.refill = math.max(number(), 1) end
  if string.find(form, 'o', 3, true) then
    rule.open = KEYS[number()]
    if rule.act == 'r' or rule.act == 's' then rule.name = take() end
    if rule.act == 'r' then rule.held_for = number() end
  end
  if rule.act == 'u' then rule.charged_left = number() end
  rule.pardon = string.find(form, 'p', 3, true) and number() or 0
  rules[i] = rule
end

for _ = 1, debts do
  local rule, marker = rules[number()], KEYS[number()]
  local debt = { floor = number(), floor_before = number(), delta = number(), delta_before = number() }
  debt.mark = number()
  local owes_block = take() == '1'
  local state, failed = read(rule, rule.key)
  if not state then return failed end
  if owes_block then
    -- Of two blocks the one that ends later stands.
    local left = debt.mark - now()
    if left > 0 and (not state.blocked or (state.left >= 0 and state.left < left)) then
      redis.call('SET', rule.key, BLOCK, 'PX', text(left))
    end
  else
    local left = rule.algorithm.owe(rule, state, debt)
    if left > 0 then
      if marker and not redis.call('SET', marker, '1', 'NX', 'PX', text(left)) then
        -- It was added when this was sent before, and is now part of the floor.
        debt.floor, debt.delta = debt.floor + debt.delta, 0
        debt.floor_before, debt.delta_before = debt.floor_before + debt.delta_before, 0
      end
      local current = math.min(math.max(state.current, debt.floor) + debt.delta, MAX_EXACT)
      local previous = math.min(math.max(state.previous, debt.floor_before) + debt.delta_before, MAX_EXACT)
      if not state.blocked and (current > state.current or previous > state.previous) then
        state.current, state.previous = current, previous
        rule.algorithm.write(rule, rule.key, state)
      end
    end
  end
end

local states, reply = {}, {}
local admitted, too_large = true, false

for i = 1, counters do
  local rule = rules[i]
  local state, failed = read(rule, rule.key)
  if not state then return failed end
  if state.blocked and state.left >= 0 and state.left < rule.pardon then
    redis.call('DEL', rule.key)
    state = read(rule, rule.key)
  end
  if state.blocked then
    if state.left == -1 then
      state.left = rule.block > 0 and rule.block or rule.window
      redis.call('PEXPIRE', rule.key, text(state.left))
    end
  elseif rule.letter == 'f' then
    if state.left == -1 or state.left > rule.window then
      state.left = rule.window
      redis.call('PEXPIRE', rule.key, text(state.left))
    end
  elseif state.lasts or state.converted then
    rule.algorithm.write(rule, rule.key, state)
  end

  if rule.open then
    if rule.act == 's' then redis.call('ZREM', rule.open, rule.name) end
    state.open, failed = held(rule.open)
    if not state.open then return failed end
  else
    state.open = 0
  end

  local verdict = 'admit'
  if rule.act == 'c' or rule.act == 'r' then
    local free = rule.limit - (state.blocked and 0 or rule.algorithm.used(rule, state))
    local asked = math.max(rule.cost, 1)
    if rule.limit == 0 then
      verdict = 'limit'
    elseif rule.cost > rule.limit then
      verdict = 'too large'
    elseif state.blocked then
      verdict = 'blocked'
    elseif asked > free then
      verdict = 'limit'
    elseif asked > free - state.open then
      verdict = 'reserved'
    end
    if rule.enforced and verdict ~= 'admit' then admitted = false end
    if rule.enforced and verdict == 'too large' then too_large = true end
  end

  state.verdict, states[i] = verdict, state
  local at = 4 * i - 3
  reply[at], reply[at + 1] = state.blocked and -1 or state.current, state.previous
  reply[at + 2], reply[at + 3] = state.left, state.open
end

for i = 1, counters do
  local rule, state = rules[i], states[i]
  local act, cost = rule.act, rule.cost
  if act == 'u' then
    if state.runs and not state.blocked then
      rule.algorithm.give_back(rule, state, cost, rule.charged_left)
      rule.algorithm.write(rule, rule.key, state)
    end
  elseif cost > 0 and state.verdict == 'admit' and (admitted or act == 's') then
    if act == 'r' then
      redis.call('ZREMRANGEBYSCORE', rule.open, '-inf', text(now()))
      redis.call('ZADD', rule.open, text(now() + rule.held_for), rule.name)
      if redis.call('PTTL', rule.open) < rule.held_for then
        redis.call('PEXPIRE', rule.open, text(rule.held_for))
      end
    elseif not state.blocked and rule.limit > 0 then
      state.current = math.min(state.current + rule.algorithm.weight(rule, cost), MAX_EXACT)
      rule.algorithm.write(rule, rule.key, state)
    end
  elseif state.verdict == 'limit' and not too_large and rule.block > 0 and rule.limit > 0 and cost > 0 then
    redis.call('SET', rule.key, BLOCK, 'PX', text(rule.block))
  end
end

return reply
