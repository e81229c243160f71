// SPDX-License-Identifier: MIT OR GPL-2.0-only
// The kernel's types as far as tcp.bpf.c reads them. Offsets are placeholders: the loader replaces them by those of the
// running kernel's BTF (CO-RE), by the names of types and fields.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define UINT(name, value) int (*name)[value]
#define TYPE(name, type) type *name
// A property of a field, as the loader fills it in.
#define FIELD(field, property) __builtin_preserve_field_info(field, property)
#define FIELD_OFFSET 0
#define FIELD_BYTES 1
#define FIELD_SHIFT_LEFT 4
#define FIELD_SHIFT_RIGHT 5

// Helper functions by their numbers (include/uapi/linux/bpf.h).
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*const now_ns)(void) = (void *)5;
static void *(*const ring_reserve)(void *ring, u64 bytes, u64 flags) = (void *)131;
static void (*const ring_submit)(void *record, u64 flags) = (void *)132;
static struct tcp_sock *(*const to_tcp_sock)(void *sock) = (void *)137;
static long (*const set_option)(void *sock, int level, int name, void *value, int bytes) = (void *)49;

enum {
    MAP_HASH = 1,
    MAP_RING = 27,
    RING_NO_WAKEUP = 1,
    SOL_SOCKET = 1,
    SO_SNDBUF = 7,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
    long long counter;
} atomic64_t;

struct sock_common {
    atomic64_t skc_cookie;
};

struct sock {
    struct sock_common __sk_common;
    int sk_wmem_queued;
    int sk_sndbuf;
};

struct inet_sock {
    struct sock sk;
};

struct inet_connection_sock {
    struct inet_sock icsk_inet;
    u8 icsk_ca_state : 5;
};

struct tcp_sock {
    struct inet_connection_sock inet_conn;
    u32 snd_wnd;
    u32 mss_cache;
    u32 snd_cwnd;
    u32 snd_ssthresh;
    u32 lost_out;
    u32 sacked_out;
    u32 retrans_out;
    u32 packets_out;
    u32 mdev_us;
    u32 rttvar_us;
    u32 srtt_us;
    u32 write_seq;
    u32 snd_nxt;
    u32 snd_una;
    u32 total_retrans;
    u64 bytes_acked;
};

struct sk_buff {
    char cb[48];
};

struct tcp_skb_cb {
    u32 seq;
    u32 end_seq;
    union {
        struct {
            u16 tcp_gso_segs;
            u16 tcp_gso_size;
        };
    };
};

struct iov_iter {
    unsigned long count;
};

struct msghdr {
    struct iov_iter msg_iter;
};

struct bpf_iter_meta;

struct bpf_iter__tcp {
    struct bpf_iter_meta *meta;
    struct sock_common *sk_common;
};

#pragma clang attribute pop
