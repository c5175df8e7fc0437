// Textbook algorithms on data of 50 to 200 MiB, one for each run: `algorithms NAME` prints a number that depends on all of it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <list>
#include <map>
#include <numeric>
#include <queue>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

using std::string, std::vector;
using Number = std::uint64_t;
using Index = std::uint32_t;

static Number state = 88172645463325252;

static Number next() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static vector<Number> numbers(std::size_t count) {
    vector<Number> all(count);
    std::generate(all.begin(), all.end(), next);
    return all;
}

// ---- arrays ----------------------------------------------------------------------------------------------------

static Number quicksort() {
    auto a = numbers(25'000'000);
    std::sort(a.begin(), a.end());
    return a[a.size() / 2];
}

static Number mergesort() {
    auto a = numbers(14'000'000);
    std::stable_sort(a.begin(), a.end());
    return a[a.size() / 2];
}

static Number heapsort() {
    auto a = numbers(10'000'000);
    std::make_heap(a.begin(), a.end());
    for (int i = 0; i < 150'000; i++) std::pop_heap(a.begin(), a.end() - i);
    return a.back();
}

static Number bsearch() {
    vector<Number> a(25'000'000);
    for (std::size_t i = 0; i < a.size(); i++) a[i] = i * 7;
    Number sum = 0;
    for (int i = 0; i < 300'000; i++) sum += std::lower_bound(a.begin(), a.end(), next() % (a.size() * 7)) - a.begin();
    return sum;
}

static Number stencil() {
    const std::size_t n = 3600;
    vector<double> a(n * n, 1), b(n * n);
    for (int round = 0; round < 6; round++) {
        for (std::size_t i = n + 1; i < n * n - n - 1; i++) b[i] = 0.25 * (a[i - 1] + a[i + 1] + a[i - n] + a[i + n]);
        std::swap(a, b);
    }
    return Number(1e6 * a[n * n / 2]);
}

static Number transpose() {
    const std::size_t n = 5000;
    vector<double> a(n * n);
    std::iota(a.begin(), a.end(), 0);
    for (int round = 0; round < 2; round++)
        for (std::size_t i = 0; i < n; i++)
            for (std::size_t j = 0; j < i; j++) std::swap(a[i * n + j], a[j * n + i]);
    return Number(a[12345]);
}

static Number columns() {
    const std::size_t n = 5000;
    vector<double> a(n * n, 1);
    double sum = 0;
    for (int round = 0; round < 3; round++)
        for (std::size_t j = 0; j < n; j += 64)
            for (std::size_t i = 0; i < n; i++) sum += a[i * n + j];
    return Number(sum);
}

static Number matrices() {
    const int n = 2600, block = 64;
    vector<float> a(n * n, 1), b(n * n, 2), c(n * n);
    for (int from = 0; from < n; from += block)
        for (int middle = 0; middle < n; middle += block)
            for (int i = from; i < std::min(n, from + block); i++)
                for (int k = middle; k < std::min(n, middle + block); k++)
                    for (int j = 0; j < n; j++) c[i * n + j] += a[i * n + k] * b[k * n + j];
    return Number(c[5]);
}

// ---- graphs ----------------------------------------------------------------------------------------------------

static Number breadth_first() {
    const Index nodes = 2'000'000, degree = 16;
    vector<Index> edges(std::size_t(nodes) * degree);
    for (std::size_t i = 0; i < edges.size(); i++) // three quarters lead to neighbours
        edges[i] = i % degree < 12 ? (i / degree + next() % 2000) % nodes : next() % nodes;
    vector<Index> distance(nodes, ~0u), queue(nodes);
    Index head = 0, tail = 0;
    distance[0] = queue[tail++] = 0;
    while (head < tail) {
        Index node = queue[head++];
        for (Index j = 0; j < degree; j++)
            if (Index to = edges[std::size_t(node) * degree + j]; distance[to] == ~0u) {
                distance[to] = distance[node] + 1;
                queue[tail++] = to;
            }
    }
    return tail + distance[nodes - 1];
}

static Number pagerank() {
    const Index nodes = 2'000'000, degree = 12;
    vector<Index> edges(std::size_t(nodes) * degree);
    for (auto &to : edges) to = next() % nodes;
    vector<float> rank(nodes, 1.f / nodes), after(nodes);
    for (int round = 0; round < 5; round++) {
        std::fill(after.begin(), after.end(), 0);
        for (Index i = 0; i < nodes; i++)
            for (Index j = 0; j < degree; j++) after[edges[std::size_t(i) * degree + j]] += rank[i] / degree;
        std::swap(rank, after);
    }
    return Number(1e12 * rank[7]);
}

static Number dijkstra() {
    const Index side = 1100;
    vector<Index> weight(side * side * 4);
    for (auto &w : weight) w = next() % 100 + 1;
    vector<Number> distance(side * side, ~Number(0));
    using Entry = std::pair<Number, Index>;
    std::priority_queue<Entry, vector<Entry>, std::greater<>> queue;
    queue.push({distance[0] = 0, 0});
    while (!queue.empty()) {
        auto [so_far, node] = queue.top();
        queue.pop();
        if (so_far > distance[node]) continue;
        Index x = node % side, y = node / side;
        const std::pair<bool, Index> ways[] = {{x + 1 < side, node + 1}, {x > 0, node - 1}, {y + 1 < side, node + side}, {y > 0, node - side}};
        for (int way = 0; way < 4; way++)
            if (auto [there, to] = ways[way]; there)
                if (Number length = so_far + weight[node * 4 + way]; length < distance[to]) queue.push({distance[to] = length, to});
    }
    return distance.back();
}

// ---- tables and objects ----------------------------------------------------------------------------------------

struct Row {
    Number key;
    char content[56];
};

static Number zipf() { // a few rows are used often, many seldom; the rows lie in any order
    vector<Row> rows(3'000'000);
    for (std::size_t i = 0; i < rows.size(); i++) rows[i] = {i, {char(i)}};
    vector<Index> place(rows.size());
    std::iota(place.begin(), place.end(), 0);
    for (std::size_t i = place.size() - 1; i > 0; i--) std::swap(place[i], place[next() % (i + 1)]);
    Number sum = 0;
    for (int i = 0; i < 3'000'000; i++) {
        double uniform = double(next() >> 11) * 0x1p-53;
        Row &row = rows[place[std::size_t(std::pow(double(rows.size()), uniform)) - 1]];
        sum += row.key + row.content[0];
        if (i % 8 == 0) row.content[1]++;
    }
    return sum;
}

static Number threads() { // four of them use rows at random
    vector<Row> rows(3'000'000);
    vector<Number> sums(4);
    vector<std::thread> all;
    for (Number t = 0; t < sums.size(); t++)
        all.emplace_back([&, t] {
            Number seed = t * 7919 + 1;
            for (int i = 0; i < 60'000; i++) {
                seed = seed * 6364136223846793005 + 1442695040888963407;
                std::size_t row = (seed >> 33) / 4 % (rows.size() / 4) * 4 + t;
                sums[t] += row + ++rows[row].key;
            }
        });
    for (auto &thread : all) thread.join();
    return std::accumulate(sums.begin(), sums.end(), Number(0));
}

static Number hash_join() {
    std::unordered_map<Number, Number> left;
    for (Number i = 0; i < 3'000'000; i++) left[i * 2654435761 % 100'000'007] = i;
    Number sum = 0;
    for (int i = 0; i < 400'000; i++)
        if (auto found = left.find(next() % 100'000'007); found != left.end()) sum += found->second;
    return sum;
}

static Number lru_cache() {
    const std::size_t room = 700'000;
    std::list<std::pair<Number, string>> entries;
    std::unordered_map<Number, decltype(entries)::iterator> found;
    Number hits = 0;
    for (int i = 0; i < 2'000'000; i++) {
        Number any = next(), key = any % 10 < 8 ? (any >> 8) % 200'000 : (any >> 8) % 3'000'000;
        if (auto entry = found.find(key); entry != found.end()) {
            entries.splice(entries.begin(), entries, entry->second);
            hits++;
            continue;
        }
        entries.emplace_front(key, string(100, 'a' + key % 26));
        found[key] = entries.begin();
        if (entries.size() > room) {
            found.erase(entries.back().first);
            entries.pop_back();
        }
    }
    return hits;
}

static Number churn() { // strings are freed and allocated, a tenth of them often
    vector<string> strings(1'500'000);
    for (int i = 0; i < 3'000'000; i++) {
        std::size_t at = next() % strings.size();
        strings[i % 3 == 0 ? at : at % (strings.size() / 10)] = string(50 + next() % 120, 'x');
    }
    return std::accumulate(strings.begin(), strings.end(), Number(0), [](Number sum, const string &s) { return sum + s.size(); });
}

static Number queue() { // first in, first out
    std::queue<vector<char>> blocks;
    Number sum = 0;
    auto take = [&] {
        sum += blocks.front()[100];
        blocks.pop();
    };
    for (int i = 0; i < 6000; i++) {
        blocks.emplace(40'000, char(i));
        if (blocks.size() > 5000) take();
    }
    while (!blocks.empty()) take();
    return sum;
}

int main(int argc, char **argv) {
    const std::map<string, Number (*)()> all = {
        {"quicksort", quicksort}, {"mergesort", mergesort}, {"heapsort", heapsort}, {"bsearch", bsearch},   {"stencil", stencil},
        {"transpose", transpose}, {"columns", columns},     {"matrices", matrices}, {"bfs", breadth_first}, {"pagerank", pagerank},
        {"dijkstra", dijkstra},   {"zipf", zipf},           {"threads", threads},   {"hash-join", hash_join}, {"lru-cache", lru_cache},
        {"churn", churn},         {"queue", queue},
    };
    auto found = all.find(argc > 1 ? argv[1] : "");
    if (found == all.end()) {
        std::fprintf(stderr, "usage: algorithms NAME, with one of");
        for (auto &[name, _] : all) std::fprintf(stderr, " %s", name.c_str());
        std::fprintf(stderr, "\n");
        return 2;
    }
    std::printf("%llu\n", static_cast<unsigned long long>(found->second()));
}
