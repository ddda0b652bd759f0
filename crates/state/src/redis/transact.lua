-- Decimal numbers without leading zeros, too large for this language's own.
local function larger(a, b)
  if #a ~= #b then
    return #a > #b
  end
  return a > b
end

local function version_of(key)
  local kind = redis.call("TYPE", key).ok
  if kind == "none" then
    return nil
  end
  if kind ~= "hash" then
    return ""
  end
  return redis.call("HGET", key, "version") or ""
end

if ARGV[1] ~= "" and redis.call("EXISTS", KEYS[1]) == 1 then
  local kept = redis.pcall("HGET", KEYS[1], "data")
  if type(kept) ~= "string" or not string.match(kept, "^%d+$") then
    return {"no-number"}
  end
  if larger(kept, ARGV[1]) then
    return {"fenced"}
  end
end

local steps = #KEYS - 1
for step = 1, steps do
  local condition = ARGV[step * 5 - 3]
  if condition ~= "" then
    local version = version_of(KEYS[step + 1])
    if condition == "!" then
      if version then
        return {tostring(step), version}
      end
    elseif version ~= condition then
      return {tostring(step), version or ""}
    end
  end
end

local function put(key, data, seconds, first)
  if redis.call("TYPE", key).ok ~= "hash" then
    redis.call("DEL", key)
  end
  redis.call("HSET", key, "data", data)
  if first ~= "" then
    redis.call("HSET", key, "first-write", first)
  end
  redis.call("HINCRBY", key, "version", 1)
  if seconds == "" then
    redis.call("PERSIST", key)
  else
    redis.call("EXPIRE", key, seconds)
  end
end

if ARGV[1] ~= "" then
  put(KEYS[1], ARGV[1], "", "")
end
for step = 1, steps do
  local at = step * 5 - 3
  if ARGV[at + 1] == "-" then
    redis.call("DEL", KEYS[step + 1])
  else
    put(KEYS[step + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
  end
end
return nil
