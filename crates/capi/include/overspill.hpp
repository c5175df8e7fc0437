// Overspill for C++17: the handles of overspill.h as classes that free themselves, errors as exceptions, and a memory resource
// for the containers of std::pmr. overspill.h says what each call does, its units and its threads; the comments here say what
// C++ adds.
//
//     overspill::pager pager(overspill::options().memory(256 << 20));
//     overspill::region region(pager, std::size_t(4) << 30);
//     auto *table = region.as<std::uint64_t>();
//
//     overspill::arena arena(pager, std::size_t(4) << 30);
//     std::pmr::unordered_map<int, std::pmr::string> map(&arena);
//
// Objects can be moved, not copied. A moved-from object can be assigned to or destroyed, and nothing else. Destructors and
// swaps do not throw; everything else throws overspill::error unless it is noexcept. This file has no code of the library's: it
// calls liboverspill.

#ifndef OVERSPILL_HPP
#define OVERSPILL_HPP

#include "overspill.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if __has_include(<span>) && __cplusplus >= 202002L
#include <span>
#endif

namespace overspill {

/// What a call of overspill.h returned, other than OVERSPILL_OK.
class error : public std::runtime_error {
public:
    error(int code, int error_number, const char *message)
        : std::runtime_error(message), code_(code), error_number_(error_number) {}
    /// One of `enum overspill_code`.
    int code() const noexcept { return code_; }
    /// The errno behind it, or 0.
    int error_number() const noexcept { return error_number_; }

private:
    int code_, error_number_;
};

/// Throws if `code` is an error.
inline void check(int code) {
    if (code != OVERSPILL_OK)
        throw error(code, overspill_error_errno(), overspill_error_message());
}

namespace detail {

template <typename T, void (*free)(T *)> struct deleter {
    void operator()(T *handle) const noexcept { free(handle); }
};

template <typename T, void (*free)(T *)> using owned = std::unique_ptr<T, deleter<T, free>>;

/// The text that `get` hands out. It may grow between the two calls, so it is asked for again.
template <typename Get> std::string text(Get get) {
    std::string result;
    std::size_t length = 0;
    check(get(nullptr, 0, &length));
    while (result.size() < length) {
        result.resize(length);
        check(get(result.data(), result.size() + 1, &length));
    }
    result.resize(length);
    return result;
}

/// What `make` makes of each thing that `list` shows.
template <typename Made, typename Shown, typename List> std::vector<Made> all(List list, Made (*make)(const Shown &)) {
    struct found {
        Made (*make)(const Shown &);
        std::vector<Made> all;
        std::exception_ptr thrown; // nothing may be thrown through the library
    } found{make, {}, nullptr};
    check(list(
        [](const Shown *shown, void *context) noexcept {
            auto &found = *static_cast<struct found *>(context);
            try {
                found.all.push_back(found.make(*shown));
            } catch (...) {
                found.thrown = std::current_exception();
            }
        },
        &found));
    if (found.thrown)
        std::rethrow_exception(found.thrown);
    return std::move(found.all);
}

} // namespace detail

/// Options of a pager; each call returns the object, so that they can be chained.
class options {
public:
    options() : handle_(overspill_options_new()) {
        if (!handle_)
            throw std::bad_alloc();
    }
    options &memory(std::uint64_t bytes) { return set(overspill_options_memory(get(), bytes)); }
    options &swap(const std::string &place) { return set(overspill_options_swap(get(), place.c_str())); }
    options &swap_limit(std::uint64_t bytes) { return set(overspill_options_swap_limit(get(), bytes)); }
    options &swap_device(const std::string &device) { return set(overspill_options_swap_device(get(), device.c_str())); }
    options &policy(const std::string &policy) { return set(overspill_options_policy(get(), policy.c_str())); }
    options &delivery(overspill_delivery delivery) { return set(overspill_options_delivery(get(), delivery)); }
    options &engine(overspill_engine engine) { return set(overspill_options_engine(get(), engine)); }
    options &encrypt(bool on) { return set(overspill_options_encrypt(get(), on)); }
    options &load_control(bool on) { return set(overspill_options_load_control(get(), on)); }
    options &follow_pointers(bool on) { return set(overspill_options_follow_pointers(get(), on)); }
    options &regions_max(std::uint16_t regions) { return set(overspill_options_regions_max(get(), regions)); }
    options &managed_max(std::uint64_t bytes) { return set(overspill_options_managed_max(get(), bytes)); }
    options &write_back(std::chrono::milliseconds after, std::uint64_t changed_bytes) {
        auto count = after.count() > 0 ? static_cast<std::uint64_t>(after.count()) : 0;
        return set(overspill_options_write_back(get(), count, changed_bytes));
    }
    /// The handle, for overspill.h. It stays this object's.
    overspill_options *get() const noexcept { return handle_.get(); }

private:
    options &set(int code) {
        check(code);
        return *this;
    }
    detail::owned<overspill_options, overspill_options_free> handle_;
};

/// A swap device, as it was when it was asked for.
struct swap_device {
    std::string name, kind, state;
    overspill_swap figures; ///< its texts are null
};

/// A replacement policy in use.
struct policy_use {
    std::string policy;
    std::string region;          ///< which one has it; empty for the pager's
    overspill_policy_use counts; ///< its texts are null
};

/// A pager. Regions and arenas keep what they need of it, so it may be destroyed before them.
class pager {
public:
    explicit pager(const options &options) {
        overspill_pager *handle = nullptr;
        check(overspill_pager_new(options.get(), &handle));
        handle_.reset(handle);
    }
    /// False in a forked child.
    bool is_here() const noexcept { return overspill_pager_is_here(get()); }
    overspill_delivery delivery() const {
        int delivery = 0;
        check(overspill_pager_delivery(get(), &delivery));
        return static_cast<overspill_delivery>(delivery);
    }
    void set_policy(const std::string &policy) const { check(overspill_pager_set_policy(get(), policy.c_str())); }
    std::string policy() const {
        return detail::text([&](char *text, std::size_t size, std::size_t *length) {
            return overspill_pager_policy(get(), text, size, length);
        });
    }
    /// The policies in use, each with its text: first the pager's, then those of regions and files.
    std::vector<policy_use> policies() const {
        return detail::all<policy_use, overspill_policy_use>(
            [this](auto each, void *context) { return overspill_pager_policies(get(), each, context); },
            [](const overspill_policy_use &use) {
                policy_use found{use.policy, use.region, use};
                found.counts.policy = found.counts.region = nullptr;
                return found;
            });
    }
    /// Empty if no page was lost.
    std::string first_loss() const {
        return detail::text([&](char *text, std::size_t size, std::size_t *length) {
            return overspill_pager_first_loss(get(), text, size, length);
        });
    }
    std::uint64_t metadata_bytes() const {
        std::uint64_t bytes = 0;
        check(overspill_pager_metadata_bytes(get(), &bytes));
        return bytes;
    }
    std::uint64_t counter(const std::string &name) const {
        std::uint64_t value = 0;
        check(overspill_pager_counter(get(), name.c_str(), &value));
        return value;
    }
    /// All counters with their names.
    std::vector<std::pair<std::string, std::uint64_t>> counters() const {
        std::vector<std::uint64_t> values(overspill_counters_count());
        check(overspill_pager_counters(get(), values.data(), values.size()));
        std::vector<std::pair<std::string, std::uint64_t>> all;
        all.reserve(values.size());
        for (std::size_t i = 0; i < values.size(); i++)
            all.emplace_back(overspill_counter_name(i), values[i]);
        return all;
    }
    std::vector<swap_device> swaps() const {
        return detail::all<swap_device, overspill_swap>(
            [this](auto each, void *context) { return overspill_pager_swaps(get(), each, context); },
            [](const overspill_swap &device) {
                swap_device found{device.name, device.kind, device.state, device};
                found.figures.name = found.figures.kind = found.figures.state = nullptr;
                return found;
            });
    }
    void swapon(const std::string &device) const { check(overspill_pager_swapon(get(), device.c_str())); }
    void swapoff(const std::string &name) const { check(overspill_pager_swapoff(get(), name.c_str(), nullptr, nullptr)); }
    /// `goes_on(const overspill_progress &)` returns false to give the swapoff up. If it throws, the swapoff is given up, and
    /// this throws the same.
    template <typename GoesOn> void swapoff(const std::string &name, GoesOn &&goes_on) const {
        struct told {
            std::remove_reference_t<GoesOn> *goes_on;
            std::exception_ptr thrown;
        } told{std::addressof(goes_on), nullptr};
        int code = overspill_pager_swapoff(
            get(), name.c_str(),
            [](const overspill_progress *progress, void *context) noexcept -> bool {
                auto &told = *static_cast<struct told *>(context);
                try {
                    return (*told.goes_on)(*progress);
                } catch (...) {
                    told.thrown = std::current_exception();
                    return false;
                }
            },
            &told);
        if (told.thrown)
            std::rethrow_exception(told.thrown);
        check(code);
    }
    /// The handle, for overspill.h. It stays this object's.
    overspill_pager *get() const noexcept { return handle_.get(); }

private:
    detail::owned<overspill_pager, overspill_pager_free> handle_;
};

/// Pages that stay in memory while this lives. From region::wire and file::wire. It must be destroyed before its region or file; a
/// moved region or file is the same.
class wire {
public:
    wire(wire &&other) noexcept : of_(std::exchange(other.of_, nullptr)), number_(other.number_), unwire_(other.unwire_) {}
    wire &operator=(wire &&other) noexcept {
        std::swap(of_, other.of_);
        std::swap(number_, other.number_);
        std::swap(unwire_, other.unwire_);
        return *this;
    }
    ~wire() {
        if (of_)
            unwire_(of_, number_);
    }

private:
    friend class region;
    friend class file;
    using unwire = void (*)(const void *, overspill_wire);
    wire(const void *of, overspill_wire number, unwire unwire) : of_(of), number_(number), unwire_(unwire) {}
    const void *of_;
    overspill_wire number_;
    unwire unwire_;
};

/// A range of paged memory.
class region {
public:
    /// The rest of the region from an offset on.
    static constexpr std::size_t rest = static_cast<std::size_t>(-1);

    region(const pager &pager, std::size_t bytes) {
        overspill_region *handle = nullptr;
        check(overspill_region_new(pager.get(), bytes, &handle));
        handle_.reset(handle);
    }
    void *data() const noexcept { return overspill_region_data(get()); }
    std::size_t size() const noexcept { return overspill_region_size(get()); }
    /// The region as an array of `T`, of which any bytes are a value. It has `size() / sizeof(T)` elements, all zero at first.
    template <typename T> T *as() const noexcept {
        static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_default_constructible_v<T>, "T must be plain data");
        static_assert(alignof(T) <= OVERSPILL_PAGE_SIZE, "a region is aligned to a page");
        return static_cast<T *>(data());
    }
#if defined(__cpp_lib_span)
    /// The same as a span.
    template <typename T> std::span<T> span() const noexcept { return {as<T>(), size() / sizeof(T)}; }
#endif
    /// Gives it a policy of its own, or changes that.
    void set_policy(const std::string &policy) const { check(overspill_region_set_policy(get(), policy.c_str())); }
    /// It has the pager's again.
    void reset_policy() const { check(overspill_region_set_policy(get(), nullptr)); }
    /// Its own policy, or else the pager's.
    std::string policy() const {
        return detail::text([&](char *text, std::size_t size, std::size_t *length) {
            return overspill_region_policy(get(), text, size, length);
        });
    }
    void prefetch(std::size_t offset = 0, std::size_t length = rest) const {
        check(overspill_region_prefetch(get(), offset, part(offset, length)));
    }
    void discard(std::size_t offset = 0, std::size_t length = rest) const {
        check(overspill_region_discard(get(), offset, part(offset, length)));
    }
    void advise(overspill_advice advice, std::size_t offset = 0, std::size_t length = rest) const {
        check(overspill_region_advise(get(), offset, part(offset, length), advice));
    }
    [[nodiscard]] overspill::wire wire(std::size_t offset = 0, std::size_t length = rest) const {
        overspill_wire number = 0;
        check(overspill_region_wire(get(), offset, part(offset, length), &number));
        return {get(), number, [](const void *region, overspill_wire number) {
                    overspill_region_unwire(static_cast<const overspill_region *>(region), number);
                }};
    }
    /// Returns the number of bytes.
    std::size_t read_at(int fd, std::uint64_t file_offset, std::size_t offset = 0, std::size_t length = rest) const {
        std::size_t done = 0;
        check(overspill_region_read_at(get(), offset, part(offset, length), fd, file_offset, &done));
        return done;
    }
    /// Returns the number of bytes.
    std::size_t write_at(int fd, std::uint64_t file_offset, std::size_t offset = 0, std::size_t length = rest) const {
        std::size_t done = 0;
        check(overspill_region_write_at(get(), offset, part(offset, length), fd, file_offset, &done));
        return done;
    }
    /// The handle, for overspill.h. It stays this object's.
    overspill_region *get() const noexcept { return handle_.get(); }

private:
    std::size_t part(std::size_t offset, std::size_t length) const noexcept {
        return length == rest && offset <= size() ? size() - offset : length;
    }
    detail::owned<overspill_region, overspill_region_free> handle_;
};

/// A file, or a part of one, as a range of memory. The destructor writes the changes of a read-write file and loses errors; close()
/// throws them.
class file {
public:
    /// The rest of the file from an offset on.
    static constexpr std::size_t rest = OVERSPILL_REST;

    /// `access` is one of `enum overspill_access`, or OVERSPILL_READ_WRITE | OVERSPILL_CREATE.
    file(const pager &pager, const std::string &path, int access, std::uint64_t offset = 0, std::size_t length = rest,
         std::size_t capacity = 0) {
        overspill_file *handle = nullptr;
        check(overspill_file_open_part(pager.get(), path.c_str(), access, offset, length, capacity, &handle));
        handle_.reset(handle);
    }
    void close() { check(overspill_file_close(handle_.release())); }
    void *data() const noexcept { return overspill_file_data(get()); }
    std::size_t size() const noexcept { return overspill_file_size(get()); }
    std::size_t capacity() const noexcept { return overspill_file_capacity(get()); }
    bool is_direct() const noexcept { return overspill_file_is_direct(get()); }
    /// The file as an array of `T`, of which any bytes are a value. It has `size() / sizeof(T)` elements. The offset in the file
    /// must be a multiple of their alignment.
    template <typename T> T *as() const noexcept {
        static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_default_constructible_v<T>, "T must be plain data");
        static_assert(alignof(T) <= OVERSPILL_PAGE_SIZE, "a file is aligned to a page");
        return static_cast<T *>(data());
    }
    void read_at(std::size_t offset, void *to, std::size_t length) const {
        check(overspill_file_read_at(get(), offset, to, length));
    }
    void write_at(std::size_t offset, const void *from, std::size_t length) const {
        check(overspill_file_write_at(get(), offset, from, length));
    }
    void flush(std::size_t offset = 0, std::size_t length = rest) const { check(overspill_file_flush(get(), offset, length)); }
    void grow(std::size_t bytes) const { check(overspill_file_grow(get(), bytes)); }
    void reload(std::size_t offset = 0, std::size_t length = rest) const { check(overspill_file_reload(get(), offset, length)); }
    void punch(std::size_t offset, std::size_t length = rest) const { check(overspill_file_punch(get(), offset, length)); }
    /// Gives it a policy of its own, or changes that.
    void set_policy(const std::string &policy) const { check(overspill_file_set_policy(get(), policy.c_str())); }
    /// It has the pager's again.
    void reset_policy() const { check(overspill_file_set_policy(get(), nullptr)); }
    /// Its own policy, or else the pager's.
    std::string policy() const {
        return detail::text([&](char *text, std::size_t size, std::size_t *length) {
            return overspill_file_policy(get(), text, size, length);
        });
    }
    void prefetch(std::size_t offset = 0, std::size_t length = rest) const {
        check(overspill_file_prefetch(get(), offset, length));
    }
    [[nodiscard]] overspill::wire wire(std::size_t offset = 0, std::size_t length = rest) const {
        overspill_wire number = 0;
        check(overspill_file_wire(get(), offset, length, &number));
        return {get(), number, [](const void *file, overspill_wire number) {
                    overspill_file_unwire(static_cast<const overspill_file *>(file), number);
                }};
    }
    /// The handle, for overspill.h. It stays this object's.
    overspill_file *get() const noexcept { return handle_.get(); }

private:
    detail::owned<overspill_file, overspill_file_free> handle_;
};

/// An arena: a memory resource over a region of its own. It may be used by several threads at a time. Containers must be
/// destroyed before it. Allocation throws std::bad_alloc if the arena is full, and in a forked child. Do not destroy containers
/// in a forked child: what they would read is not there.
class arena : public std::pmr::memory_resource {
public:
    arena(const pager &pager, std::size_t bytes) {
        overspill_arena *handle = nullptr;
        check(overspill_arena_new(pager.get(), bytes, &handle));
        handle_.reset(handle);
    }
    /// Gives it a policy of its own, or changes that.
    void set_policy(const std::string &policy) const { check(overspill_arena_set_policy(get(), policy.c_str())); }
    /// It has the pager's again.
    void reset_policy() const { check(overspill_arena_set_policy(get(), nullptr)); }
    /// Its own policy, or else the pager's.
    std::string policy() const {
        return detail::text([&](char *text, std::size_t size, std::size_t *length) {
            return overspill_arena_policy(get(), text, size, length);
        });
    }
    std::size_t capacity() const noexcept { return overspill_arena_capacity(get()); }
    std::uint64_t used() const noexcept { return overspill_arena_used(get()); }
    /// The handle, for overspill.h. It stays this object's.
    overspill_arena *get() const noexcept { return handle_.get(); }

private:
    void *do_allocate(std::size_t bytes, std::size_t alignment) override {
        void *block = nullptr;
        if (overspill_arena_alloc(get(), bytes, alignment, &block) != OVERSPILL_OK)
            throw std::bad_alloc();
        return block;
    }
    void do_deallocate(void *block, std::size_t, std::size_t) override { overspill_arena_dealloc(get(), block); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

    detail::owned<overspill_arena, overspill_arena_free> handle_;
};

} // namespace overspill

#endif
