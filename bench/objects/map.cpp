// A tree and a hash of strings, then look-ups at random: each needs any page.
#include <cstdio>
#include <map>
#include <string>
#include <unordered_map>

int main() {
    unsigned seed = 42;
    auto next = [&] { return seed = seed * 1664525u + 1013904223u; };
    std::map<unsigned, std::string> tree;
    std::unordered_map<std::string, int> hash;
    for (int i = 0; i < 400'000; i++) {
        unsigned key = next();
        tree[key] = "value-" + std::to_string(i);
        hash["key-" + std::to_string(key)] = i;
    }
    unsigned long sum = 0;
    for (int i = 0; i < 100'000; i++) {
        auto found = tree.lower_bound(next());
        if (found != tree.end()) sum += found->first + hash["key-" + std::to_string(found->first)];
    }
    std::printf("%zu %zu %lu\n", tree.size(), hash.size(), sum);
}
