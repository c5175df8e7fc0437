// Uses all of overspill.hpp: `classes DELIVERY DIRECTORY`. What is wrong is printed, and the program aborts.
#include <overspill.hpp>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>

namespace {

constexpr std::size_t MIB = 1 << 20, BUDGET = OVERSPILL_MEMORY_BYTES_MIN;

#define CHECK(what) ((what) ? void() : wrong(__LINE__, #what))

[[noreturn]] void wrong(int line, const char *what) {
    std::printf("line %d: not so: %s\n", line, what);
    std::fflush(stdout);
    std::abort();
}

/// Checks that `run` throws an overspill::error of that code.
template <typename Run> void throws(int line, int code, Run run) {
    try {
        run();
    } catch (const overspill::error &e) {
        if (e.code() != code || std::strlen(e.what()) < 10)
            wrong(line, e.what());
        return;
    }
    wrong(line, "it throws");
}
#define THROWS(code, ...) throws(__LINE__, code, [&] { __VA_ARGS__; })

/// Collections of several times the budget.
void containers(const overspill::pager &pager) {
    overspill::arena arena(pager, 256 * MIB);
    {
        std::pmr::vector<std::uint64_t> numbers(&arena);
        for (std::uint64_t i = 0; i < 4 * BUDGET / 8; i++) // grows, and moves, up to four budgets
            numbers.push_back(i * i);
        for (std::uint64_t i = 0; i < numbers.size(); i++)
            CHECK(numbers[i] == i * i);
        CHECK(arena.used() >= 4 * BUDGET);
    }
    CHECK(arena.used() == 0);
    {
        // in the order of their keys, so that neighbours in the tree are neighbours in memory
        std::pmr::map<int, std::pmr::string> texts(&arena);
        std::string text(100, 'x');
        int count = 2 * BUDGET / 200;
        for (int i = 0; i < count; i++)
            texts.emplace_hint(texts.end(), i, text + std::to_string(i));
        CHECK(arena.used() > BUDGET * 3 / 2);
        int next = 0;
        for (auto &[key, value] : texts)
            CHECK(key == next++ && value.compare(100, std::string::npos, std::to_string(key)) == 0);
        CHECK(next == count);
        std::pmr::map<int, std::pmr::string> moved(std::move(texts));
        CHECK(moved.size() == std::size_t(count) && moved.get_allocator().resource() == &arena);
    }
    CHECK(arena.used() == 0);
    {
        std::pmr::unordered_map<std::uint64_t, std::uint64_t> first(&arena), second(&arena);
        auto fill = [](auto &map, std::uint64_t factor) {
            for (std::uint64_t i = 0; i < 50000; i++)
                map[i] = i * factor;
        };
        std::thread other([&] { fill(first, 3); });
        fill(second, 5);
        other.join();
        for (std::uint64_t i = 0; i < 50000; i++)
            CHECK(first.at(i) == i * 3 && second.at(i) == i * 5);
    }
    CHECK(arena.used() == 0);
    struct alignas(256) wide {
        char bytes[256];
    };
    std::pmr::vector<wide> aligned(100, &arena);
    CHECK(reinterpret_cast<std::uintptr_t>(aligned.data()) % 256 == 0);
    overspill::arena small(pager, MIB);
    bool full = false;
    try {
        std::pmr::vector<char> large(2 * MIB, &small);
    } catch (const std::bad_alloc &) {
        full = true;
    }
    CHECK(full && small.capacity() == MIB && !(arena == small) && arena == arena);
}

void regions(const overspill::pager &pager, const std::string &directory) {
    overspill::region region(pager, 2 * BUDGET);
    auto *words = region.as<std::uint64_t>();
    for (std::size_t i = 0; i < region.size() / 8; i++)
        words[i] = i * 7 + 1;
    auto sound = [&](std::size_t from) {
        for (std::size_t i = from / 8; i < region.size() / 8; i++)
            CHECK(words[i] == i * 7 + 1);
    };
    sound(0);
#if defined(__cpp_lib_span)
    CHECK(region.span<std::uint64_t>().size() == region.size() / 8);
#endif
    overspill::region moved(std::move(region));
    region = std::move(moved);
    CHECK(region.as<std::uint64_t>() == words);
    {
        auto wired = region.wire(0, MIB), second = region.wire(4096, 10);
        wired = std::move(second); // swaps them
        overspill::wire third = std::move(wired);
        THROWS(OVERSPILL_E_IS_WIRED, region.discard());
    }
    THROWS(OVERSPILL_E_WIRED_TOO_MUCH, (void)region.wire());
    THROWS(OVERSPILL_E_ARGUMENT, region.prefetch(region.size() + 1));
    region.prefetch(0, MIB);
    region.advise(OVERSPILL_WILLNEED, MIB, MIB);
    std::string name = directory + "/file";
    int fd = open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && unlink(name.c_str()) == 0);
    CHECK(region.write_at(fd, 0) == region.size());
    region.discard(0, MIB);
    CHECK(words[0] == 0);
    sound(MIB);
    CHECK(region.read_at(fd, 0, 0, MIB) == MIB);
    sound(0);
    close(fd);
    try {
        region.read_at(INT_MAX, 0); // (under the number of the closed file a thread of the pager may open another)
        wrong(__LINE__, "it throws");
    } catch (const overspill::error &e) {
        CHECK(e.code() == OVERSPILL_E_IO && e.error_number() == EBADF);
    }
    region.advise(OVERSPILL_DONTNEED);
    CHECK(words[region.size() / 8 - 1] == 0);
    THROWS(OVERSPILL_E_REGION_SIZE, overspill::region(pager, 0));
}

void files(const overspill::pager &pager, const std::string &directory) {
    std::string name = directory + "/numbers";
    std::size_t count = 2 * BUDGET / 8;
    {
        overspill::file file(pager, name, OVERSPILL_READ_WRITE | OVERSPILL_CREATE, 0, BUDGET, 3 * BUDGET);
        CHECK(file.size() == BUDGET && file.capacity() == 3 * BUDGET);
        file.grow(2 * BUDGET);
        auto *numbers = file.as<std::uint64_t>();
        for (std::size_t i = 0; i < count; i++)
            numbers[i] = i * 3;
        std::uint64_t seven = 7, found = 0;
        file.write_at(8, &seven, 8);
        file.read_at(8, &found, 8);
        CHECK(found == 7 && numbers[1] == 7);
        file.punch(4096, 4096);
        CHECK(numbers[512] == 0 && numbers[511] == 511 * 3);
        file.flush();
        overspill::file moved(std::move(file));
        file = std::move(moved);
        CHECK(file.data() == numbers);
        {
            auto wired = file.wire(0, MIB);
            THROWS(OVERSPILL_E_IS_WIRED, file.reload());
        }
        file.reload(0, MIB);
        THROWS(OVERSPILL_E_FILE_SHARED, overspill::file(pager, name, OVERSPILL_READ_ONLY));
        numbers[3] = 1;
        file.close();
    }
    {
        overspill::file file(pager, name, OVERSPILL_READ_ONLY, 16), mine(pager, name, OVERSPILL_COPY_ON_WRITE);
        CHECK(file.size() == count * 8 - 16 && file.as<std::uint64_t>()[1] == 1);
        file.prefetch(MIB, MIB);
        for (std::size_t i = 1000; i + 2 < count; i++)
            CHECK(i + 2 < 1024 || file.as<std::uint64_t>()[i] == (i + 2) * 3);
        mine.as<std::uint64_t>()[3] = 9;
        THROWS(OVERSPILL_E_ACCESS, mine.flush());
        CHECK(file.as<std::uint64_t>()[1] == 1 && file.is_direct() == mine.is_direct());
    }
    {
        overspill::file file(pager, name, OVERSPILL_READ_WRITE);
        file.as<std::uint64_t>()[3] = 5; // the destructor writes it
    }
    CHECK(overspill::file(pager, name, OVERSPILL_READ_ONLY).as<std::uint64_t>()[3] == 5);
    {
        overspill::file file(pager, name, OVERSPILL_READ_WRITE);
        file.as<std::uint64_t>()[count - 1] = 1;
        CHECK(truncate(name.c_str(), 4096) == 0);
        THROWS(OVERSPILL_E_FILE_ENDS, file.close());
    }
    THROWS(OVERSPILL_E_FILE, overspill::file(pager, directory + "/none", OVERSPILL_READ_ONLY));
    CHECK(unlink(name.c_str()) == 0);
}

void devices(const overspill::pager &pager, const std::string &directory) {
    overspill::region region(pager, 2 * BUDGET);
    std::memset(region.data(), 'y', region.size());
    std::string more = directory + "/more";
    CHECK(mkdir(more.c_str(), 0700) == 0);
    pager.swapon("file:" + more + ",prio=3");
    auto devices = pager.swaps();
    CHECK(devices.size() == 2 && devices[0].name == more && devices[0].figures.priority == 3 && devices[1].name == directory);
    CHECK(devices[0].kind == "file" && devices[0].state == "on");
    struct given_up {};
    bool thrown = false;
    try {
        pager.swapoff(more, [](const overspill_progress &) -> bool { throw given_up(); });
    } catch (const given_up &) {
        thrown = true; // when all was done, at the latest
    }
    CHECK(thrown);
    if (pager.swaps().size() == 2)
        pager.swapoff(more);
    std::uint64_t left = 1;
    pager.swapon(more);
    pager.swapoff(directory, [&](const overspill_progress &progress) {
        left = progress.left_pages;
        return true;
    });
    CHECK(left == 0 && pager.swaps().size() == 1);
    THROWS(OVERSPILL_E_DEVICE, pager.swapoff("/no/such/device"));
    pager.swapon(directory);
    pager.swapoff(more);
    CHECK(rmdir(more.c_str()) == 0);
}

} // namespace

int main(int count, char **arguments) {
    CHECK(count == 3);
    std::string directory = arguments[2];
    auto delivery = std::strcmp(arguments[1], "threads") == 0 ? OVERSPILL_THREADS : OVERSPILL_IN_THREAD;
    overspill::options options;
    options.memory(BUDGET).swap(directory).delivery(delivery).policy("2q").swap_limit(std::uint64_t(1) << 31);
    options.engine(OVERSPILL_ENGINE_AUTO).encrypt(true).load_control(true);
    options.write_back(std::chrono::seconds(20), BUDGET / 4).follow_pointers(true).regions_max(5).managed_max(512 * MIB);
    std::unique_ptr<overspill::pager> made;
    try {
        made = std::make_unique<overspill::pager>(options);
    } catch (const overspill::error &e) {
        if (e.code() != OVERSPILL_E_USERFAULTFD)
            throw;
        std::printf("CANNOT: %s\n", e.what());
        return 0;
    }
    overspill::pager pager(std::move(*made));
    CHECK(pager.is_here() && pager.delivery() == delivery && pager.policy() == "2q" && pager.first_loss().empty());
    pager.set_policy("use-once");
    CHECK(pager.policy() == "use-once");
    THROWS(OVERSPILL_E_POLICY, pager.set_policy("nonsense"));
    {
        overspill::region own(pager, 1 << 20);
        own.set_policy("fifo");
        THROWS(OVERSPILL_E_POLICY, own.set_policy("nonsense"));
        overspill::file file(pager, "/proc/self/exe", OVERSPILL_READ_ONLY);
        file.set_policy("drop-behind");
        CHECK(own.policy() == "fifo" && file.policy() == "drop-behind" && pager.policies().size() == 3);
        CHECK(pager.policies()[1].policy == "fifo" && !pager.policies()[1].counts.policy);
        CHECK(pager.policies()[0].region.empty() && pager.policies()[2].region == "/proc/self/exe");
        own.reset_policy();
        file.reset_policy();
        overspill::arena arena(pager, 1 << 20);
        arena.set_policy("sieve");
        CHECK(own.policy() == "use-once" && file.policy() == "use-once" && arena.policy() == "sieve");
        arena.reset_policy();
        CHECK(arena.policy() == "use-once" && pager.policies().size() == 1);
    }
    CHECK(pager.policies().size() == 1);
    THROWS(OVERSPILL_E_NO_BUDGET, overspill::pager(overspill::options()));
    THROWS(OVERSPILL_E_ARGUMENT, pager.counter("nonsense"));
    THROWS(OVERSPILL_E_DEVICE, overspill::options().swap_device("floppy:x"));
    regions(pager, directory);
    files(pager, directory);
    containers(pager);
    devices(pager, directory);
    CHECK(pager.counter("pages_out") > 1000 && pager.metadata_bytes() > 0);
    auto counters = pager.counters();
    CHECK(counters.size() == overspill_counters_count() && counters[0].first == overspill_counter_name(0));
    std::printf("all right\n");
}
