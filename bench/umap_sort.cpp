// What UMap's example `umapsort` does, on a file of Overspill's or of the kernel's: a new file is filled with descending numbers,
// sorted in parallel in place, and checked. `bench/umap_sort.py` runs it beside the example itself.
//
//   umap_sort region|mmap FILE MEGABYTES MEMORY_MEGABYTES THREADS
//
// Prints the seconds that each part took. The example ends when its file has the changes; so does this, and waits for the device.

#include <fcntl.h>
#include <omp.h>
#include <overspill.hpp>
#include <parallel/algorithm>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

namespace {

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const char *what) {
    std::perror(what);
    std::exit(1);
}

/// A new file of `bytes`, with its blocks.
int make(const char *path, std::size_t bytes) {
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || posix_fallocate(fd, 0, static_cast<off_t>(bytes)) != 0)
        fail(path);
    return fd;
}

void sort(std::uint64_t *words, std::size_t count) {
    double begun = seconds();
#pragma omp parallel for
    for (std::size_t i = 0; i < count; i++)
        words[i] = count - i;
    double filled = seconds();
    __gnu_parallel::sort(words, words + count, std::less<>(), __gnu_parallel::quicksort_tag());
    double sorted = seconds();
    bool right = true;
#pragma omp parallel for reduction(&& : right)
    for (std::size_t i = 0; i < count; i++)
        right = right && words[i] == i + 1;
    std::printf("fill %f\nsort %f\ncheck %f\n", filled - begun, sorted - filled, seconds() - sorted);
    if (!right) {
        std::fprintf(stderr, "wrong order\n");
        std::exit(1);
    }
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 6) {
        std::fprintf(stderr, "usage: umap_sort region|mmap FILE MEGABYTES MEMORY_MEGABYTES THREADS\n");
        return 2;
    }
    const char *path = argv[2];
    std::size_t bytes = std::strtoul(argv[3], nullptr, 10) << 20;
    omp_set_num_threads(std::atoi(argv[5]));
    int fd = make(path, bytes);
    double ended;
    if (std::string(argv[1]) == "region") {
        overspill::pager pager(overspill::options().memory(std::strtoul(argv[4], nullptr, 10) << 20));
        overspill::file file(pager, path, OVERSPILL_READ_WRITE);
        sort(file.as<std::uint64_t>(), bytes / 8);
        ended = seconds();
        file.close();
    } else {
        void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED)
            fail("mmap");
        sort(static_cast<std::uint64_t *>(at), bytes / 8);
        ended = seconds();
        if (msync(at, bytes, MS_SYNC) != 0)
            fail("msync");
    }
    std::printf("end %f\n", seconds() - ended);
    close(fd);
    return 0;
}
