//! A packet socket (AF_PACKET) on an interface of the host: the stack is another station on its network.
//!
//! As with macvlan, the host's own addresses on that interface cannot be reached: what the stack sends goes to the
//! network and not up to the host.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};

use super::{Opened, tap};

/// Bytes of frames that wait to be received, and of frames that the device has not sent yet.
const BUFFER_BYTES: i32 = 8 << 20;

/// Opens a packet socket on the interface `name` for a station with address `mac`. Needs CAP_NET_RAW, and CAP_NET_ADMIN
/// for buffers beyond the system's limits and to bring the interface up.
pub fn open(name: &str, mac: [u8; 6]) -> io::Result<Opened> {
    let explain = |what: &'static str| move |error: io::Error| tap::explain(&error, what);
    let mtu = tap::bring_up(name)?;
    let index = index(name).map_err(explain("its number"))?;
    // SAFETY: a new descriptor, owned below. Protocol 0: nothing is received before `bind`.
    let socket = unsafe {
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let socket = libc::socket(libc::AF_PACKET, flags, 0);
        if socket < 0 {
            return Err(explain("a packet socket needs CAP_NET_RAW")(io::Error::last_os_error()));
        }
        OwnedFd::from_raw_fd(socket)
    };
    let packet = |option, what| set(&socket, libc::SOL_PACKET, option, &1i32).map_err(explain(what));
    packet(PACKET_VNET_HDR, "PACKET_VNET_HDR")?;
    packet(PACKET_IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING")?;
    // Frames go to the device at once, without the queueing discipline: a full device is ENOBUFS, and `inet` waits.
    packet(PACKET_QDISC_BYPASS, "PACKET_QDISC_BYPASS")?;
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        set(&socket, libc::SOL_SOCKET, forced, &BUFFER_BYTES)
            .or_else(|_| set(&socket, libc::SOL_SOCKET, plain, &BUFFER_BYTES))
            .map_err(explain("buffers"))?;
    }
    filter(&socket, mac).map_err(explain("SO_ATTACH_FILTER"))?;
    // The device receives for this address too, and multicast: neighbour solicitations (RFC 4861 §7.2.2).
    for (kind, address) in [(libc::PACKET_MR_UNICAST, &mac[..]), (libc::PACKET_MR_ALLMULTI, &[])] {
        let mut membership = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: kind as u16,
            mr_alen: address.len() as u16,
            mr_address: [0; 8],
        };
        membership.mr_address[..address.len()].copy_from_slice(address);
        set(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
            .map_err(explain("PACKET_ADD_MEMBERSHIP"))?;
    }
    // SAFETY: plain numbers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    // SAFETY: the address is a sockaddr_ll of that size.
    let result = unsafe {
        let length = size_of_val(&address) as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length)
    };
    if result != 0 {
        return Err(explain("bind")(io::Error::last_os_error()));
    }
    Ok(Opened { descriptor: socket, mtu })
}

// Of linux/if_packet.h.
const PACKET_VNET_HDR: i32 = 15;
const PACKET_QDISC_BYPASS: i32 = 20;
const PACKET_IGNORE_OUTGOING: i32 = 23;

fn set<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `value`.
    let result = unsafe {
        let length = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), length)
    };
    if result != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn index(name: &str) -> io::Result<i32> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: a string that ends with a zero byte.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index.cast_signed()),
    }
}

/// Lets frames to `mac` and to groups through, without a VLAN tag (which the kernel has taken out of the frame: those
/// of other networks would look like ours).
fn filter(socket: &OwnedFd, mac: [u8; 6]) -> io::Result<()> {
    let [a, b, c, d, e, f] = mac.map(u32::from);
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load_byte, load_half, load_word) =
        (libc::BPF_LD | libc::BPF_B, libc::BPF_LD | libc::BPF_H, libc::BPF_LD | libc::BPF_W);
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let any_bit = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let mut program = [
        op(load_byte | libc::BPF_ABS, 0, 0, SKF_AD_VLAN_TAG_PRESENT),
        op(equal, 0, 7, 0),
        op(load_byte | libc::BPF_ABS, 0, 0, 0),
        op(any_bit, 4, 0, 1),
        op(load_word | libc::BPF_ABS, 0, 0, 0),
        op(equal, 0, 3, a << 24 | b << 16 | c << 8 | d),
        op(load_half | libc::BPF_ABS, 0, 0, 4),
        op(equal, 0, 1, e << 8 | f),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT of linux/filter.h.
const SKF_AD_VLAN_TAG_PRESENT: u32 = (-0x1000i32 + 48).cast_unsigned();

/// Whether a socket still belongs to an interface; that of a deleted one does not.
pub(crate) fn is_bound(socket: BorrowedFd<'_>) -> bool {
    // SAFETY: plain numbers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `address`.
    let result = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    result == 0 && address.sll_ifindex > 0
}
