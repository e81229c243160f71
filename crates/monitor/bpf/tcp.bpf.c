// SPDX-License-Identifier: MIT OR GPL-2.0-only
// What happens at watched TCP sockets, as records in a ring buffer (src/probe/bpf/record.rs reads them), and a larger send
// buffer for a socket that no process holds. Only raw tracepoints with BTF and the iterator over TCP sockets are used.
//
// `cargo xtask bpf` compiles this file into tcp.bpf.o.
#include "kernel.h"

// The kernel lets only programs that declare a licence compatible with the GPL read its structures.
char LICENSE[] SEC("license") = "Dual MIT/GPL";

enum { RING_BYTES = 4 << 20, SOCKETS_MAX = 1024 };

enum kind { ACK = 1, RETRANSMIT = 2, STATE = 3, SEND = 4 };

// A record begins with these 24 bytes.
struct head {
    u32 kind;
    u32 bytes;
    u64 cookie;
    u64 at_ns;
};

// The socket before a segment that has arrived is processed.
struct ack {
    struct head head;
    u64 bytes_acked;
    u32 mss_bytes, cwnd, ssthresh, packets_out;
    u32 sacked_out, lost_out, retrans_out, srtt_us_8;
    u32 rttvar_us_4, peer_window, snd_una, snd_nxt;
    u32 write_seq, queued_bytes, buffer_bytes, total_retrans;
    u32 ca_state, reserved;
};

struct retransmit {
    struct head head;
    u32 seq, bytes, segments, total_retrans;
};

struct state {
    struct head head;
    u32 before, after, cwnd, ssthresh;
};

// A write of the program: `bytes` at stream position `seq`; the part of it that the kernel has not taken yet counts.
struct send {
    struct head head;
    u64 bytes;
    u32 seq, unsent_bytes;
};

// Of a watched socket; user space writes the zeroes and reads `drops`.
struct watched {
    u64 drops;
    // The last look at a write: how much was left, and the stream position of that.
    u64 left_bytes;
    u32 seq, reserved;
};

// `wanted_bytes` of sk_sndbuf comes from user space, the others go there.
struct tune {
    u32 wanted_bytes, is_found;
    u32 before_bytes, after_bytes;
    int error;
    u32 may_shrink;
};

struct {
    UINT(type, MAP_RING);
    UINT(max_entries, RING_BYTES);
} RING SEC(".maps");

struct {
    UINT(type, MAP_HASH);
    UINT(max_entries, SOCKETS_MAX);
    TYPE(key, u64);
    TYPE(value, struct watched);
} WATCHED SEC(".maps");

struct {
    UINT(type, MAP_HASH);
    UINT(max_entries, SOCKETS_MAX);
    TYPE(key, u64);
    TYPE(value, struct tune);
} TUNE SEC(".maps");

INLINE struct watched *find(struct sock *sk, u64 *cookie)
{
    *cookie = sk->__sk_common.skc_cookie.counter;
    return map_lookup(&WATCHED, cookie);
}

// Room for a record; counts it as dropped where there is none.
INLINE void *reserve(struct watched *watched, u64 cookie, u32 kind, u32 bytes)
{
    struct head *head = ring_reserve(&RING, bytes, 0);
    if (!head) {
        __sync_fetch_and_add(&watched->drops, 1);
        return 0;
    }
    head->kind = kind;
    head->bytes = bytes;
    head->cookie = cookie;
    head->at_ns = now_ns();
    return head;
}

// User space looks at the ring by itself a hundred times a second.
#define SUBMIT(record) ring_submit(record, RING_NO_WAKEUP)

// `icsk_ca_state` is a bit field, whose place and width the loader fills in.
INLINE u32 ca_state(struct tcp_sock *tp)
{
    struct inet_connection_sock *icsk = &tp->inet_conn;
    void *place = (void *)icsk + FIELD(icsk->icsk_ca_state, FIELD_OFFSET);
    u64 value = 0;
    switch (FIELD(icsk->icsk_ca_state, FIELD_BYTES)) {
    case 1: value = *(u8 *)place; break;
    case 2: value = *(u16 *)place; break;
    case 4: value = *(u32 *)place; break;
    case 8: value = *(u64 *)place; break;
    }
    value <<= FIELD(icsk->icsk_ca_state, FIELD_SHIFT_LEFT);
    return value >> FIELD(icsk->icsk_ca_state, FIELD_SHIFT_RIGHT);
}

SEC("tp_btf/tcp_probe")
int tcp_probe(u64 *context)
{
    struct sock *sk = (void *)context[0];
    u64 cookie;
    struct watched *watched = find(sk, &cookie);
    struct tcp_sock *tp;
    struct ack *record;
    if (!watched || !(tp = to_tcp_sock(sk)))
        return 0;
    if (!(record = reserve(watched, cookie, ACK, sizeof *record)))
        return 0;
    record->bytes_acked = tp->bytes_acked;
    record->mss_bytes = tp->mss_cache;
    record->cwnd = tp->snd_cwnd;
    record->ssthresh = tp->snd_ssthresh;
    record->packets_out = tp->packets_out;
    record->sacked_out = tp->sacked_out;
    record->lost_out = tp->lost_out;
    record->retrans_out = tp->retrans_out;
    record->srtt_us_8 = tp->srtt_us;
    record->rttvar_us_4 = tp->mdev_us;
    record->peer_window = tp->snd_wnd;
    record->snd_una = tp->snd_una;
    record->snd_nxt = tp->snd_nxt;
    record->write_seq = tp->write_seq;
    record->queued_bytes = sk->sk_wmem_queued;
    record->buffer_bytes = sk->sk_sndbuf;
    record->total_retrans = tp->total_retrans;
    record->ca_state = ca_state(tp);
    record->reserved = 0;
    SUBMIT(record);
    return 0;
}

// A field of `struct tcp_skb_cb`, which lies in `cb` of the packet.
#define OF_PACKET(skb, type, field) \
    (*(type *)((void *)(skb) + FIELD(((struct sk_buff *)0)->cb, FIELD_OFFSET) + FIELD(((struct tcp_skb_cb *)0)->field, FIELD_OFFSET)))

SEC("tp_btf/tcp_retransmit_skb")
int tcp_retransmit_skb(u64 *context)
{
    struct sock *sk = (void *)context[0];
    struct sk_buff *skb = (void *)context[1];
    u64 cookie;
    struct watched *watched = find(sk, &cookie);
    struct tcp_sock *tp;
    struct retransmit *record;
    if (!watched || !(tp = to_tcp_sock(sk)))
        return 0;
    if (!(record = reserve(watched, cookie, RETRANSMIT, sizeof *record)))
        return 0;
    record->seq = OF_PACKET(skb, u32, seq);
    record->bytes = OF_PACKET(skb, u32, end_seq) - record->seq;
    record->segments = OF_PACKET(skb, u16, tcp_gso_segs);
    record->total_retrans = tp->total_retrans;
    SUBMIT(record);
    return 0;
}

SEC("tp_btf/tcp_cong_state_set")
int tcp_cong_state_set(u64 *context)
{
    struct sock *sk = (void *)context[0];
    u8 after = context[1];
    u64 cookie;
    struct watched *watched = find(sk, &cookie);
    struct tcp_sock *tp;
    struct state *record;
    if (!watched || !(tp = to_tcp_sock(sk)))
        return 0;
    u32 before = ca_state(tp);
    if (before == after || !(record = reserve(watched, cookie, STATE, sizeof *record)))
        return 0;
    record->before = before;
    record->after = after;
    record->cwnd = tp->snd_cwnd;
    record->ssthresh = tp->snd_ssthresh;
    SUBMIT(record);
    return 0;
}

// Called for each packet that a write fills; the first one of a write makes a record. A write whose rest comes again
// because the buffer was full counts once. One thread at a time has the socket locked.
SEC("tp_btf/tcp_sendmsg_locked")
int tcp_sendmsg_locked(u64 *context)
{
    struct sock *sk = (void *)context[0];
    struct msghdr *message = (void *)context[1];
    u64 cookie;
    struct watched *watched = find(sk, &cookie);
    struct tcp_sock *tp;
    struct send *record;
    if (!watched || !(tp = to_tcp_sock(sk)))
        return 0;
    u64 left = message->msg_iter.count;
    u32 seq = tp->write_seq;
    u32 taken = seq - watched->seq;
    int goes_on = left && left <= watched->left_bytes && watched->left_bytes - left == taken;
    watched->left_bytes = left;
    watched->seq = seq;
    if (goes_on || !(record = reserve(watched, cookie, SEND, sizeof *record)))
        return 0;
    record->bytes = left;
    record->seq = seq;
    record->unsent_bytes = seq - tp->snd_nxt;
    SUBMIT(record);
    return 0;
}

// The kernel holds the socket's lock. It caps the size at net.core.wmem_max, doubles it, and sizes the buffer itself no more.
SEC("iter/tcp")
int tune(struct bpf_iter__tcp *context)
{
    struct sock_common *common = context->sk_common;
    if (!common)
        return 0;
    u64 cookie = common->skc_cookie.counter;
    struct tune *tune = map_lookup(&TUNE, &cookie);
    struct tcp_sock *tp;
    if (!tune || !(tp = to_tcp_sock(common)))
        return 0;
    struct sock *sk = &tp->inet_conn.icsk_inet.sk;
    tune->is_found = 1;
    tune->before_bytes = tune->after_bytes = sk->sk_sndbuf;
    if (tune->wanted_bytes <= tune->before_bytes && !tune->may_shrink)
        return 0;
    int value = tune->wanted_bytes / 2;
    tune->error = set_option(common, SOL_SOCKET, SO_SNDBUF, &value, sizeof value);
    tune->after_bytes = sk->sk_sndbuf;
    return 0;
}
