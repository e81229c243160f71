// Preloaded into a peer: makes it slow in one chosen way. Each variable that is not set changes nothing.
//   SHIM_SPIN_NS_KIB  computes for so long after each KiB that it sent to a TCP socket
//   SHIM_NAGLE        TCP_NODELAY has no effect, and a header leaves apart from its data
//   SHIM_STORAGE_US   each pread and pwrite takes so much longer
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define SOCKETS 4096

static unsigned char is_socket[SOCKETS];
static long spin_ns, storage_us;
static int has_nagle;

__attribute__((constructor)) static void read_settings(void) {
    const char *value;
    if ((value = getenv("SHIM_SPIN_NS_KIB"))) spin_ns = atol(value);
    if ((value = getenv("SHIM_STORAGE_US"))) storage_us = atol(value);
    has_nagle = getenv("SHIM_NAGLE") != NULL;
}

static void note(int fd) {
    if (fd >= 0 && fd < SOCKETS) is_socket[fd] = 1;
}

static ssize_t sent(int fd, ssize_t bytes) {
    if (spin_ns == 0 || bytes < 1024 || fd < 0 || fd >= SOCKETS || !is_socket[fd]) return bytes;
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    long wanted = bytes / 1024 * spin_ns;
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < wanted);
    return bytes;
}

static void storage(void) {
    struct timespec pause = {storage_us / 1000000, storage_us % 1000000 * 1000};
    if (storage_us) nanosleep(&pause, NULL);
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length) {
    REAL(setsockopt);
    int off = 0;
    if (has_nagle && level == IPPROTO_TCP && option == TCP_NODELAY) value = &off, length = sizeof off;
    return real(fd, level, option, value, length);
}

int connect(int fd, const struct sockaddr *address, socklen_t length) {
    REAL(connect);
    note(fd);
    return real(fd, address, length);
}

int accept(int fd, struct sockaddr *address, socklen_t *length) {
    REAL(accept);
    int result = real(fd, address, length);
    note(result);
    return result;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(write);
    return sent(fd, real(fd, bytes, count));
}

ssize_t send(int fd, const void *bytes, size_t count, int flags) {
    REAL(send);
    return sent(fd, real(fd, bytes, count, flags));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    if (has_nagle && count > 1) count = 1;
    return sent(fd, real(fd, parts, count));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    REAL(sendmsg);
    return sent(fd, real(fd, message, flags));
}

ssize_t pread64(int fd, void *bytes, size_t count, off64_t at) {
    REAL(pread64);
    storage();
    return real(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    REAL(pwrite64);
    storage();
    return real(fd, bytes, count, at);
}

ssize_t pread(int fd, void *bytes, size_t count, off_t at) { return pread64(fd, bytes, count, at); }
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) { return pwrite64(fd, bytes, count, at); }
