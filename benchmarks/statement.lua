-- wrk: each request has a different number, so that no cache of results or statements helps, unless the
-- statement has no placeholder. Arguments: METHOD PATH STATEMENT LOWEST COUNT. The placeholder is {}, and the
-- numbers are LOWEST to LOWEST + COUNT - 1; all are used once before one repeats.
local STRIDE = 7919  -- a prime: consecutive requests do not use adjacent rows
local method, path, statement, lowest, count, position

local function escaped(text)
  return (text:gsub("[^%w]", function(letter) return string.format("%%%02X", letter:byte()) end))
end

function init(args)
  method, path, statement, lowest, count = args[1], args[2], args[3], tonumber(args[4]), tonumber(args[5])
  math.randomseed(os.time() + tonumber(tostring({}):sub(8), 16) % 1000000)
  position = math.random(0, count - 1)
end

function request()
  position = (position + STRIDE) % count
  local text = statement:gsub("{}", string.format("%d", lowest + position))
  if method == "GET" then
    return wrk.format(method, path .. escaped(text))
  end
  return wrk.format(method, path, nil, text)
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %.6f, "errors": %d, "p50_ms": %.3f, "p99_ms": %.3f}\n',
    summary.requests, summary.duration / 1e6,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
