# A hash of strings, sorted by key and read in that order.
require 'digest'
random = Random.new(42)
map = {}
1_500_000.times { |i| map["key-#{random.rand(1 << 30)}-#{i}"] = "value-#{i}" }
digest = Digest::SHA256.new
map.keys.sort.each { |key| digest << key << map[key] }
puts map.size, digest.hexdigest
