/* A bare loop over sock_diag, and a process that holds connections: what `cargo xtask bench probe` compares `watch` with.
 *   probe hold PORT COUNT             opens connections to 127.0.0.1:PORT, prints a line, and sleeps
 *   probe sample PORT HZ SECONDS      samples each socket whose other end has the port, 50 in a datagram, and keeps of
 *                                     each the last struct tcp_info, SO_MEMINFO and what BBR estimates
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 50
#define SOCKETS 4096

struct request { struct nlmsghdr header; struct inet_diag_req_v2 body; };
static struct request requests[SOCKETS];
static char slots[BATCH][2048];
/* The last sample of each socket. */
static struct { struct timespec at; struct tcp_info info; __u32 memory[SK_MEMINFO_VARS]; struct tcp_bbr_info bbr; } last[SOCKETS];

static void keep(const void *from, unsigned length, void *to, unsigned most) {
    memcpy(to, from, length < most ? length : most);
}

/* Returns 1 for a sample of a socket. */
static int take(struct nlmsghdr *h, int first, const struct timespec *at) {
    struct inet_diag_msg *m = NLMSG_DATA(h);
    int place = first + h->nlmsg_seq;
    if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY || place < 0 || place >= SOCKETS)
        return 0;
    int left = h->nlmsg_len - NLMSG_LENGTH(sizeof *m);
    last[place].at = *at;
    for (struct rtattr *a = (void *)(m + 1); RTA_OK(a, left); a = RTA_NEXT(a, left))
        switch (a->rta_type) {
        case INET_DIAG_INFO: keep(RTA_DATA(a), RTA_PAYLOAD(a), &last[place].info, sizeof last[place].info); break;
        case INET_DIAG_SKMEMINFO: keep(RTA_DATA(a), RTA_PAYLOAD(a), last[place].memory, sizeof last[place].memory); break;
        case INET_DIAG_BBRINFO: keep(RTA_DATA(a), RTA_PAYLOAD(a), &last[place].bbr, sizeof last[place].bbr); break;
        }
    return 1;
}

static int hold(int port, int count) {
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    for (int i = 0; i < count; i++)
        if (connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&to, sizeof to))
            return 1;
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}

/* Whether connections are controlled by BBR unless they choose otherwise: its estimate is then asked for. */
static int is_bbr(void) {
    char name[16] = "";
    socklen_t length = sizeof name;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length);
    close(fd);
    return !strcmp(name, "bbr");
}

/* Requests for the sockets that the dump shows. */
static int find(int fd, int port) {
    struct request all = { { sizeof all, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0 },
        { .sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = 1 << 1 } };
    static char part[65536];
    int found = 0;
    send(fd, &all, sizeof all, 0);
    for (;;) {
        int length = recv(fd, part, sizeof part, 0);
        for (struct nlmsghdr *h = (void *)part; NLMSG_OK(h, (unsigned)length); h = NLMSG_NEXT(h, length)) {
            if (h->nlmsg_type == NLMSG_DONE)
                return found;
            struct inet_diag_msg *m = NLMSG_DATA(h);
            if (ntohs(m->id.idiag_dport) != port || found == SOCKETS)
                continue;
            requests[found] = (struct request){ { sizeof(struct request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, found % BATCH, 0 },
                { .sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = -1, .id = m->id,
                  .idiag_ext = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_SKMEMINFO - 1)
                      | (is_bbr() ? 1 << (INET_DIAG_VEGASINFO - 1) : 0) } };
            found++;
        }
    }
}

static int sample(int port, long hz, long seconds) {
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG), count = find(fd, port);
    struct mmsghdr headers[BATCH];
    struct iovec slices[BATCH];
    memset(headers, 0, sizeof headers);
    for (int i = 0; i < BATCH; i++) {
        slices[i] = (struct iovec){ slots[i], sizeof slots[i] };
        headers[i].msg_hdr.msg_iov = &slices[i];
        headers[i].msg_hdr.msg_iovlen = 1;
    }
    struct timespec next;
    unsigned long replies = 0;
    printf("%d sockets\n", count);
    fflush(stdout);
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (long round = 0; round < hz * seconds; round++) {
        for (int first = 0; first < count; first += BATCH) {
            int part = count - first < BATCH ? count - first : BATCH, left = part;
            struct timespec at;
            send(fd, &requests[first], part * sizeof(struct request), 0);
            clock_gettime(CLOCK_MONOTONIC, &at);
            while (left > 0) {
                int got = recvmmsg(fd, headers, left, MSG_DONTWAIT, NULL);
                if (got <= 0)
                    break;
                for (int i = 0; i < got; i++)
                    replies += take((void *)slots[i], first, &at);
                left -= got;
            }
        }
        next.tv_nsec += 1000000000 / hz;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    }
    printf("%lu replies\n", replies);
    return replies == 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "hold"))
        return hold(atoi(argv[2]), atoi(argv[3]));
    if (argc == 5 && !strcmp(argv[1], "sample"))
        return sample(atoi(argv[2]), atol(argv[3]), atol(argv[4]));
    return 2;
}
