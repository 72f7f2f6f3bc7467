/* Moves the wall clock of one process while it runs: LD_PRELOAD it, and write how many nanoseconds it is off, as an
   int64, into the file that CHAOS_CLOCK names. The clocks that no jump can reach (monotonic, boot) are left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void look(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t now = at->tv_sec * 1000000000LL + at->tv_nsec + *offset;
        at->tv_sec = now / 1000000000LL;
        at->tv_nsec = now % 1000000000LL;
    }
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
