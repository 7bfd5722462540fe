-- Token bucket: `window:level:at`, the level in 1/window of a token at a moment
-- in milliseconds since 1970. `refill` units leak in each millisecond; it
-- expires when nothing is left of it.

local function leaked(level, elapsed, refill)
  -- A product that is not exact is larger than any level.
  return math.max(0, level - math.max(0, elapsed) * refill)
end

algorithms.b = {
  read = function(rule, state, value)
    local window, level, at = rule.window, 0, now()
    if value then
      local w, l, a = string.match(value, '^(%d+):(%d+):(%d+)$')
      window, level, at = tonumber(w), tonumber(l), tonumber(a)
      if not exact(window, level, at) or window == 0 then return false end
    end
    if window ~= rule.window then
      -- As many tokens of the window that it is now.
      local tokens, more = scaled(level, rule.window, window)
      level = math.min(tokens + (more and 1 or 0), MAX_EXACT)
    end
    -- If the clock went back, the bucket has not.
    state.at = math.max(at, now())
    state.current, state.previous, state.left = leaked(level, now() - at, rule.refill), 0, 0
    return true
  end,

  used = function(rule, state) return quotient_up(state.current, rule.window) end,

  weight = function(rule, cost) return cost * rule.window end,

  write = function(rule, key, state)
    if state.current == 0 then return redis.call('DEL', key) end
    local value = { text(rule.window), text(state.current), text(state.at) }
    local left = quotient_up(state.current, rule.refill) + (state.at - now())
    redis.call('SET', key, table.concat(value, ':'), 'PX', text(left))
  end,

  give_back = function(rule, state, cost, left)
    if left > 0 then state.current = math.max(0, state.current - cost * rule.window) end
  end,

  -- `mark` is the moment of the levels. What leaks leaks from the floor first.
  owe = function(rule, state, debt)
    local leak = math.max(0, now() - debt.mark) * rule.refill
    local rest = math.max(0, leak - debt.floor)
    debt.floor, debt.delta = math.max(0, debt.floor - leak), math.max(0, debt.delta - rest)
    return quotient_up(math.max(state.current, debt.floor) + debt.delta, rule.refill)
  end,
}
